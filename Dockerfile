# byov in a container, from the versions of constraints.txt. It was not built where this was written, which has no Docker;
# what it installs is what `make setup` installs.
#
#   docker build -t byov .                            PyTorch as PyPI has it, with CUDA
#   docker build -t byov --build-arg INDEX=URL .      a smaller PyTorch, from the index that its own pages name for CPUs
#   docker run --rm -v "$PWD:/data" --user "$(id -u):$(id -g)" byov byov-extract --dataset demo
#   docker run --rm --gpus all ...                    on a machine with NVIDIA's container toolkit
#
# /data is the folder with datasets/, features/ and runs/.
FROM python:3.11-slim

WORKDIR /opt/byov
COPY constraints.txt .
ARG INDEX=
RUN python -m pip install --no-cache-dir --constraint constraints.txt ${INDEX:+--extra-index-url "$INDEX"} setuptools torch

COPY . .
RUN python -m pip install --no-cache-dir --constraint constraints.txt --no-build-isolation ".[imagenet,tensorboard]"

# Whoever it runs as: models of the hub are kept beside the data, and nothing else is written outside of /data.
ENV HF_HOME=/data/.huggingface MPLCONFIGDIR=/tmp/matplotlib
RUN useradd --create-home byov && mkdir /data && chown byov /data
USER byov
WORKDIR /data
CMD ["byov-extract", "--help"]
