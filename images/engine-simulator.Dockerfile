# Behaves like one release of an engine, without a GPU: the operator's command line starts it unchanged. From the root of the repository:
#   docker build -f images/engine-simulator.Dockerfile --build-arg RELEASE=0.5.23 -t lmsysorg/sglang:v0.5.23 .
ARG BASE_IMAGE=python:3.12-slim

FROM ${BASE_IMAGE} AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
COPY requirements.lock /build/
RUN python3 -m venv /opt/dflash \
 && /opt/dflash/bin/pip install --no-cache-dir --no-compile --disable-pip-version-check --require-hashes --no-deps -r /build/requirements.lock
COPY dflash_controller /opt/dflash/lib/dflash_controller
COPY testbed /opt/dflash/lib/testbed
COPY images/engine-simulator/sglang /opt/dflash/lib/sglang
COPY images/engine-simulator/vllm /opt/dflash/bin/vllm
RUN /opt/dflash/bin/python3 -m compileall -q /opt/dflash/lib/dflash_controller /opt/dflash/lib/testbed \
 && PYTHONPATH=/opt/dflash/lib /opt/dflash/bin/python3 -c 'import testbed.simulator.__main__'

FROM ${BASE_IMAGE}
ENV PATH=/opt/dflash/bin:$PATH PYTHONPATH=/opt/dflash/lib PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
COPY --from=build /opt/dflash /opt/dflash
WORKDIR /tmp
USER 65532:65532
# Last, so that the images of all releases share every layer.
ARG RELEASE
LABEL org.opencontainers.image.title="dflash-engine-simulator" \
      org.opencontainers.image.description="Simulates one release of an inference engine, without a GPU" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${RELEASE}"
ENV DFLASH_SIM_RELEASE=${RELEASE}
