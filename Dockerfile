# docker build -t hdgemm .                                  the host device
# docker build -t hdgemm --build-arg EXTRAS=opencl,plot .   any extras of pyproject.toml
# docker run --rm -v "$PWD:/data" --user "$(id -u):$(id -g)" -m 2g hdgemm \
#     multiply A.npy B.npy --out C.npy --host-memory 1.5GB
FROM python:3.13-slim AS build
ARG EXTRAS=plot
ARG PACKAGES=
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY hdgemm ./hdgemm
RUN python -m venv /opt/hdgemm \
    && /opt/hdgemm/bin/pip install --no-cache-dir ".${EXTRAS:+[$EXTRAS]}" $PACKAGES

FROM python:3.13-slim
COPY --from=build /opt/hdgemm /opt/hdgemm
RUN useradd --create-home --uid 1000 hdgemm && mkdir /data && chown hdgemm /data
ENV PATH=/opt/hdgemm/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONSAFEPATH=1 \
    XDG_CACHE_HOME=/tmp/cache
USER hdgemm
WORKDIR /data
ENTRYPOINT ["hdgemm"]
CMD ["--help"]
