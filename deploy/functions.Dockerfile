# The functions' image: Nuclio's processor and wrapper with MXNet and Coach's functions.
#   docker build -f deploy/functions.Dockerfile -t coach-functions:0.1.0 .
# NUCLIO_IMAGES is where the images of Nuclio's release are.
ARG NUCLIO_IMAGES=nuclio
ARG NUCLIO_VERSION=1.14.1
FROM ${NUCLIO_IMAGES}/processor:${NUCLIO_VERSION}-amd64 AS processor
FROM ${NUCLIO_IMAGES}/handler-builder-python-onbuild:${NUCLIO_VERSION}-amd64 AS wrapper

FROM python:3.11-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*
COPY requirements/functions.txt /tmp/functions.txt
# The wrapper also needs msgpack, which it ships as a wheel.
COPY --from=wrapper /home/nuclio/bin/wheels /tmp/wheels
RUN pip install --no-cache-dir --require-hashes -r /tmp/functions.txt \
    && pip install --no-cache-dir --no-index --no-deps --find-links /tmp/wheels msgpack \
    && rm -rf /tmp/functions.txt /tmp/wheels
COPY --from=processor /home/nuclio/bin/processor /usr/local/bin/processor
COPY --from=wrapper /home/nuclio/bin/py /opt/nuclio
COPY functions /opt/nuclio
EXPOSE 8080
CMD ["processor"]
