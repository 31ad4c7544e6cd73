# The operator, and the program that fetches weights in an init container. From the root of the repository:
#   make images
# or docker build -f images/operator.Dockerfile -t dflash-operator:0.1.0 .
# Both stages use one base, so that the Python of the environment is the Python that runs it.
ARG BASE_IMAGE=python:3.12-slim

FROM ${BASE_IMAGE} AS build
# pip follows these: the index and the certificates of the machine that builds. Neither is kept in the image.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
COPY requirements.lock /build/
RUN python3 -m venv /opt/dflash \
 && /opt/dflash/bin/pip install --no-cache-dir --no-compile --disable-pip-version-check --require-hashes --no-deps -r /build/requirements.lock
COPY images/sbom.py images/trim.py /build/
# hf-xet: a transfer of 11 MB that dflash-fetch does not use. pip last, because it deletes itself.
RUN /opt/dflash/bin/pip uninstall --quiet --yes hf-xet \
 && /opt/dflash/bin/pip uninstall --quiet --yes pip setuptools \
 && /opt/dflash/bin/python3 /build/sbom.py >/opt/dflash/sbom.cdx.json
COPY dflash_controller /opt/dflash/lib/dflash_controller
COPY operator/main.py /opt/dflash/operator/main.py
# Compiled here, because the root file system of the pod is read-only; of the libraries, what the operator and dflash-fetch import. They run
# in processes of their own after the deletion, so the build fails if something is missing.
RUN PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/opt/dflash/lib /opt/dflash/bin/python3 /build/trim.py /opt/dflash/operator/main.py \
 && /opt/dflash/bin/python3 -m compileall -q /opt/dflash/lib/dflash_controller \
 && PYTHONPATH=/opt/dflash/lib /opt/dflash/bin/python3 -c 'import dflash_controller.fetch.fetch, dflash_controller.fetch.program' \
 && PYTHONPATH=/opt/dflash/lib /opt/dflash/bin/python3 -c 'import runpy; runpy.run_path("/opt/dflash/operator/main.py", run_name="compiled")'

FROM ${BASE_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="dflash-operator" \
      org.opencontainers.image.description="Kubernetes operator for DFlash speculative decoding: serve, tune and roll out drafters" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENV PATH=/opt/dflash/bin:$PATH PYTHONPATH=/opt/dflash/lib PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
COPY --from=build /opt/dflash /opt/dflash
USER 65532:65532
ENTRYPOINT ["python3", "/opt/dflash/operator/main.py"]
