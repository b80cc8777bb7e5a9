# The whole product as one static binary in an otherwise empty image. To build from another image:
# --build-arg GO_IMAGE=golang@sha256:…
ARG GO_IMAGE=golang:1.26.8@sha256:3c3e25a4da13fd0478eed2df1eb35a0e667094a7124d3993a6a1d30f71c17e79
FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS build
WORKDIR /src
# First what changes rarely, so that the modules stay in a layer of their own.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
# scripts/release says version and commit.
ARG LDFLAGS="-s -w" TARGETOS TARGETARCH
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -ldflags="$LDFLAGS" -o /out/safedelivr ./cmd/safedelivr \
    && mkdir /out/data

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/safedelivr /safedelivr
# A number, so that an orchestrator can see that it is not root.
COPY --from=build --chown=65532:65532 /out/data /data
USER 65532:65532
ENV SAFEDELIVR_DATA_DIR=/data SAFEDELIVR_LISTEN=:8080
# So that docker exec finds it: docker compose exec api safedelivr login
ENV PATH=/
VOLUME /data
EXPOSE 8080
# Whether it lives. While the store or the broker is away it is not ready, and a new container would not be either.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["/safedelivr", "health", "--live"]
ENTRYPOINT ["/safedelivr"]
CMD ["serve"]
