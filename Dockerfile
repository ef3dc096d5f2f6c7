# For a CPU:  docker build -t study .
# For a GPU:  docker build -t study --build-arg TORCH=cu128 .    CUDA 12.8; the wheels of torch bring its libraries
# Offline:    docker build -t study --build-arg WHEELS=URL .     an index of your own with the wheels of torch
# Run:        docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/sweeps" study sweep
#             with a GPU also --gpus all --ipc=host
# Results go to ./results, data sets to ./.data.
FROM python:3.12-slim

# PyTorch's own wheels: for a CPU without the gigabytes of CUDA, for a GPU of the chosen CUDA.
ARG TORCH=cpu
ARG WHEELS=https://download.pytorch.org/whl/${TORCH}
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_EXTRA_INDEX_URL=${WHEELS}

WORKDIR /opt/study
COPY pyproject.toml README.md LICENSE ./
COPY conf conf
COPY docs docs
COPY study study
COPY workloads workloads
COPY analysis analysis
RUN pip install --no-cache-dir . && rm -rf /opt/study

ENV STUDY_DATA=/sweeps/.data \
    XDG_CACHE_HOME=/sweeps/.data \
    MPLCONFIGDIR=/tmp/matplotlib \
    HOME=/tmp
WORKDIR /sweeps
USER 65534
ENTRYPOINT ["study"]
CMD ["--help"]
