# The functions' image with Nuclio's own processor and wrapper. Build it from the checkout's root:
#   docker build -f deploy/functions.Dockerfile -t coach-nuclio-functions:0.1.0 .
# NUCLIO_IMAGES is where the images of Nuclio's release are. Coach's own image (deploy/pod.Dockerfile) runs under Nuclio, too.
ARG NUCLIO_IMAGES=nuclio
ARG NUCLIO_VERSION=1.14.1
FROM ${NUCLIO_IMAGES}/handler-builder-python-onbuild:${NUCLIO_VERSION}-amd64 AS nuclio

FROM python:3.11-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 libgfortran5 \
    && rm -rf /var/lib/apt/lists/*
COPY requirements/functions.txt /tmp/functions.txt
# The wrapper also needs msgpack, which Nuclio ships as a wheel.
COPY --from=nuclio /home/nuclio/bin/py3.11-whl /tmp/wheels
RUN pip install --no-cache-dir --require-hashes -r /tmp/functions.txt \
    && pip install --no-cache-dir --no-index --no-deps --find-links /tmp/wheels msgpack \
    && rm -rf /tmp/functions.txt /tmp/wheels
COPY --from=nuclio /home/nuclio/bin/processor /usr/local/bin/processor
COPY --from=nuclio /home/nuclio/bin/py /opt/nuclio
COPY functions /opt/coach/functions
ENV NUCLIO_PYTHON_PATH=/opt/coach/functions COACH_DATA_CACHE=/tmp/coach-data HOME=/tmp PYTHONDONTWRITEBYTECODE=1 \
    OMP_NUM_THREADS=1
EXPOSE 8080 8082
USER 65532
CMD ["processor"]
