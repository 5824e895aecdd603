# Coach's scheduler: kube-scheduler with its plugins. Build from the checkout's root:
#
#     docker build -f deploy/scheduler/scheduler.Dockerfile -t coach-scheduler:1.35.4 .
FROM golang:1.26 AS build
WORKDIR /src
COPY scheduler-plugins/go.mod scheduler-plugins/go.sum ./
RUN go mod download
COPY scheduler-plugins/ ./
RUN CGO_ENABLED=0 make build BIN=/out

FROM scratch
COPY --from=build /out/coach-scheduler /coach-scheduler
USER 65532
ENTRYPOINT ["/coach-scheduler"]
