# The functions' image of PyTorch jobs: Coach's own function host, PyTorch and the functions. From the checkout's root:
#   docker build -f deploy/pod-pytorch.Dockerfile -t coach-functions-pytorch:0.1.0 .
# Not built by the tests. TORCH is what pip installs: another version, or a wheel without CUDA.
FROM python:3.11-slim
ARG TORCH=torch
COPY requirements/host.txt requirements/pytorch.txt /tmp/
RUN python -m venv /opt/coach && python -m venv /opt/functions \
    && /opt/coach/bin/pip install --no-cache-dir --require-hashes -r /tmp/host.txt \
    && /opt/functions/bin/pip install --no-cache-dir --require-hashes -r /tmp/pytorch.txt \
    && /opt/functions/bin/pip install --no-cache-dir ${TORCH} numpy \
    && rm /tmp/host.txt /tmp/pytorch.txt
COPY coach /opt/coach/lib/python3.11/site-packages/coach
COPY functions /opt/coach/functions
ENV PATH=/opt/coach/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1 \
    COACH_FUNCTIONS=/opt/coach/functions NUCLIO_PYTHON_EXE_PATH=/opt/functions/bin/python \
    COACH_DATA_CACHE=/tmp/coach-data OMP_NUM_THREADS=1
EXPOSE 8080 8082
USER 65532
ENTRYPOINT ["python3", "-m", "coach.platforms.local.host.pod"]
