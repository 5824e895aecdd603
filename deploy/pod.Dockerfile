# The functions' image for plain pods: Coach's own function host, MXNet and the functions. Build from the checkout's root:
#   docker build -f deploy/pod.Dockerfile -t coach-functions:0.1.0 .
# `make images` builds it with docker or without (scripts/images.py).
FROM python:3.11-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 libgfortran5 \
    && rm -rf /var/lib/apt/lists/*
# Two environments, because MXNet needs an older NumPy than Coach.
COPY requirements/host.txt requirements/functions.txt /tmp/
RUN python -m venv /opt/coach && python -m venv /opt/functions \
    && /opt/coach/bin/pip install --no-cache-dir --require-hashes -r /tmp/host.txt \
    && /opt/functions/bin/pip install --no-cache-dir --require-hashes -r /tmp/functions.txt \
    && rm /tmp/host.txt /tmp/functions.txt
COPY coach /opt/coach/lib/python3.11/site-packages/coach
COPY functions /opt/coach/functions
ENV PATH=/opt/coach/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1 \
    COACH_FUNCTIONS=/opt/coach/functions NUCLIO_PYTHON_EXE_PATH=/opt/functions/bin/python \
    COACH_DATA_CACHE=/tmp/coach-data OMP_NUM_THREADS=1
EXPOSE 8080 8082
USER 65532
ENTRYPOINT ["python3", "-m", "coach.platforms.local.host.pod"]
