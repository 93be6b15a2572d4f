# byov in a container, with the versions pinned in constraints.txt. This file has not been tested; it installs the same
# packages as `make setup`.
#
#   docker build -t byov .                            PyTorch from PyPI, with CUDA
#   docker build -t byov --build-arg INDEX=URL .      a smaller PyTorch, from the CPU index listed on pytorch.org
#   docker run --rm -v "$PWD:/data" --user "$(id -u):$(id -g)" byov byov-extract --dataset demo
#   docker run --rm --gpus all ...                    on a machine with the NVIDIA Container Toolkit
#
# /data contains datasets/, features/ and runs/.
FROM python:3.11-slim

WORKDIR /opt/byov
COPY constraints.txt .
ARG INDEX=
RUN python -m pip install --no-cache-dir --constraint constraints.txt ${INDEX:+--extra-index-url "$INDEX"} setuptools torch

COPY . .
RUN python -m pip install --no-cache-dir --constraint constraints.txt --no-build-isolation ".[imagenet,tensorboard]"

# The container may run as any user, so downloaded models are stored in /data and temporary files in /tmp.
ENV HF_HOME=/data/.huggingface MPLCONFIGDIR=/tmp/matplotlib
RUN useradd --create-home byov && mkdir /data && chown byov /data
USER byov
WORKDIR /data
CMD ["byov-extract", "--help"]
