# Behaves like one release of an engine, without a GPU: the operator's command line starts it unchanged. From the repository root:
#   docker build -f images/engine-simulator.Dockerfile --build-arg RELEASE=0.5.23 -t lmsysorg/sglang:v0.5.23 .
ARG BASE_IMAGE=python:3.12-slim
FROM ${BASE_IMAGE}
ARG RELEASE
ENV DFLASH_SIM_RELEASE=${RELEASE} PATH=/opt/dflash/bin:$PATH PYTHONPATH=/opt/dflash/lib PYTHONUNBUFFERED=1
COPY requirements.lock /opt/dflash/
RUN python3 -m venv /opt/dflash && pip install --no-cache-dir --require-hashes -r /opt/dflash/requirements.lock
COPY dflash_controller /opt/dflash/lib/dflash_controller
COPY testbed /opt/dflash/lib/testbed
COPY images/engine-simulator/sglang /opt/dflash/lib/sglang
COPY images/engine-simulator/vllm /opt/dflash/bin/vllm
WORKDIR /tmp
USER 65532:65532
