"""How many workers there is room for on a cluster."""

import logging
import time
from collections.abc import Mapping

from byov.cluster.ray_session import ClusterOptions
from byov.errors import ClusterError

LOGGER = logging.getLogger(__name__)
FREED_SECONDS = 3.0  # after which Ray has heard, with all likelihood, of room that was freed


def workers_to_hire(cluster: ClusterOptions) -> int:
    """As many as are wanted, of those that there is room for now; at least one."""
    import ray

    most = _room(cluster, ray.cluster_resources())
    wanted = most if cluster.workers is None else cluster.workers
    deadline = time.monotonic() + FREED_SECONDS
    while (room := _room(cluster, ray.available_resources())) < min(wanted, most) and time.monotonic() < deadline:
        time.sleep(0.1)
    if not room or not able_machines(cluster):
        raise ClusterError(no_room(cluster))
    if cluster.workers is not None and wanted > room:
        LOGGER.info(f"{wanted} workers are wanted, there is room for {room}")
    return min(wanted, room)


def _room(cluster: ClusterOptions, resources: Mapping[str, float]) -> int:
    return min(int(resources.get(kind, 0) / needed) for kind, needed in _needs(cluster).items() if needed)


def able_machines(cluster: ClusterOptions) -> list[str]:
    """The machines, by the names that Ray gives them, that have what a worker needs, in use or not."""
    import ray

    needs = _needs(cluster)
    return [
        node["NodeID"]
        for node in ray.nodes()
        if node["Alive"] and all(node["Resources"].get(kind, 0) >= needed for kind, needed in needs.items())
    ]


def _needs(cluster: ClusterOptions) -> dict[str, float]:
    return {"CPU": cluster.cpus_per_worker, "GPU": cluster.gpus_per_worker}


def no_room(cluster: ClusterOptions) -> str:
    import ray

    total, free = ray.cluster_resources(), ray.available_resources()
    there = " and ".join(f"{free.get(kind, 0):g} of {total.get(kind, 0):g} {kind}s" for kind in ("CPU", "GPU"))
    return (
        f"no machine has {cluster.cpus_per_worker} CPUs and {cluster.gpus_per_worker:g} GPUs free for a worker "
        f"(of all together, {there} are); ask for less with --cpus-per-worker and --gpus-per-worker"
    )
