# The handler's image: Coach itself and the papers' policies, without MXNet.
#   docker build -f deploy/handler.Dockerfile -t coach-handler:0.1.0 .
# `make images` builds it with docker or without (scripts/images.py).
FROM python:3.11-slim
WORKDIR /opt/coach
COPY requirements/coach.txt requirements/coach.txt
RUN pip install --no-cache-dir --require-hashes -r requirements/coach.txt
COPY pyproject.toml README.md ./
COPY coach coach
COPY functions functions
COPY research research
RUN pip install --no-cache-dir hatchling && pip install --no-cache-dir --no-deps --no-build-isolation . ./research
ENV COACH_HOME=/var/lib/coach COACH_FUNCTIONS=/opt/coach/functions
VOLUME /var/lib/coach
USER 65532
ENTRYPOINT ["coach"]
