# The functions' image of PyTorch jobs: PyTorch and the functions. From the checkout's root:
#   docker build -f deploy/pod-pytorch.Dockerfile -t coach-functions-pytorch:0.1.0 .
# `make images` builds one of Debian's PyTorch without docker: python scripts/images.py functions-pytorch. TORCH is what pip installs: another version, or a wheel without CUDA.
FROM python:3.11-slim
ARG TORCH=torch
RUN pip install --no-cache-dir ${TORCH} numpy pyzmq obstore
COPY functions /opt/coach/functions
ENV HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/opt/coach/functions COACH_DATA_CACHE=/tmp/coach-data OMP_NUM_THREADS=1
EXPOSE 8080 8082
USER 65532
ENTRYPOINT ["python3", "-m", "training.serving.serve"]
