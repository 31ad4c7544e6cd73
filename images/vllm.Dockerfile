# vLLM's own release image, made ready to run as a user other than root. From the root of the repository:
#   docker build -f images/vllm.Dockerfile --build-arg DIGEST=sha256:… -t registry.example/vllm:v0.33.0 .
# RELEASE and DIGEST name one upstream image: a tag may be moved, a digest may not. images/README.md says how to find the digest and which
# releases were checked.
ARG UPSTREAM=docker.io/vllm/vllm-openai
ARG RELEASE=0.33.0
ARG DIGEST
FROM ${UPSTREAM}:v${RELEASE}@${DIGEST}
ARG UPSTREAM
ARG RELEASE
LABEL org.opencontainers.image.title="dflash-vllm" \
      org.opencontainers.image.description="vLLM's release image, for a user other than root" \
      org.opencontainers.image.version="${RELEASE}" \
      org.opencontainers.image.base.name="${UPSTREAM}:v${RELEASE}"
# Caches (Hugging Face, torch.compile, Triton, FlashInfer, outlines, numba) are made below HOME, which is root's in the upstream image: for
# another user the engine would fail when it creates them. The operator's storage settings move the large ones to the volume.
USER 0
# The entry in /etc/passwd and USER are for PyTorch, which asks for the name of its user.
RUN useradd --uid 65532 --gid 0 --create-home --home-dir /home/engine engine && mkdir -p /home/engine/.cache && chmod -R g=u /home/engine \
 && chown -R 65532:0 /home/engine
ENV HOME=/home/engine USER=engine
WORKDIR /home/engine
USER 65532:0
