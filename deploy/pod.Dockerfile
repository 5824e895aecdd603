# The functions' image for plain pods: MXNet and the functions. Build from the checkout's root:
#   docker build -f deploy/pod.Dockerfile -t coach-functions:0.1.0 .
# `make images` builds it with docker or without (scripts/images.py).
FROM python:3.11-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 libgfortran5 \
    && rm -rf /var/lib/apt/lists/*
COPY requirements/functions.txt /tmp/
RUN pip install --no-cache-dir --require-hashes -r /tmp/functions.txt && rm /tmp/functions.txt
COPY functions /opt/coach/functions
ENV HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/opt/coach/functions COACH_DATA_CACHE=/tmp/coach-data OMP_NUM_THREADS=1
EXPOSE 8080 8082
USER 65532
ENTRYPOINT ["python3", "-m", "training.serving.serve"]
