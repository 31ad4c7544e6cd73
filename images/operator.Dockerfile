# The operator. From the repository root:
#   docker build -f images/operator.Dockerfile -t dflash-operator:0.1.0 .
ARG BASE_IMAGE=python:3.12-slim
FROM ${BASE_IMAGE}
ENV PATH=/opt/dflash/bin:$PATH PYTHONPATH=/opt/dflash/lib PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
COPY requirements.lock /opt/dflash/
RUN python3 -m venv /opt/dflash && pip install --no-cache-dir --require-hashes -r /opt/dflash/requirements.lock
COPY dflash_controller /opt/dflash/lib/dflash_controller
COPY operator/main.py /opt/dflash/operator/main.py
USER 65532:65532
ENTRYPOINT ["python3", "/opt/dflash/operator/main.py"]
