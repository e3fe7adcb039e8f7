# The image that `make image` builds, for machines with a container engine: docker build -t tapestry .
# If a pinned Debian package is no longer available: docker build -t tapestry --build-arg PACKAGES=--newest .

FROM debian:bookworm-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv
WORKDIR /source
COPY requirements.lock .
RUN python3 -m venv /venv && /venv/bin/python -m pip install --require-hashes --requirement requirements.lock
COPY . .
ARG TARGETARCH
ARG PACKAGES=
ARG SOURCE_DATE_EPOCH=0
RUN SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH /venv/bin/python tools/image.py --architecture "$TARGETARCH" --root /image $PACKAGES

FROM scratch
COPY --from=build /image /
USER 65532:65532
WORKDIR /home/nonroot
ENV PATH=/usr/bin HOME=/home/nonroot LANG=C.UTF-8 SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PYTHONDONTWRITEBYTECODE=1
ENTRYPOINT ["tapestry"]
