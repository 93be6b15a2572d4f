"""How many workers there is room for on a cluster."""

import logging

from byov.cluster.ray_session import ClusterOptions
from byov.errors import ClusterError

LOGGER = logging.getLogger(__name__)


def workers_to_hire(cluster: ClusterOptions) -> int:
    """As many as are wanted, of those that there is room for now; at least one."""
    import ray

    free, wanted = ray.available_resources(), cluster.workers
    needs = {"CPU": cluster.cpus_per_worker, "GPU": cluster.gpus_per_worker}
    room = min(int(free.get(kind, 0) / needed) for kind, needed in needs.items() if needed)
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    fits = any(all(has.get(kind, 0) >= needed for kind, needed in needs.items()) for has in machines)
    if not room or not fits:
        raise ClusterError(no_room(cluster))
    if wanted is not None and wanted > room:
        LOGGER.info(f"{wanted} workers are wanted, there is room for {room}")
    return room if wanted is None else min(wanted, room)


def no_room(cluster: ClusterOptions) -> str:
    import ray

    total, free = ray.cluster_resources(), ray.available_resources()
    there = " and ".join(f"{free.get(kind, 0):g} of {total.get(kind, 0):g} {kind}s" for kind in ("CPU", "GPU"))
    return (
        f"no machine has {cluster.cpus_per_worker} CPUs and {cluster.gpus_per_worker:g} GPUs free for a worker "
        f"(of all together, {there} are); ask for less with --cpus-per-worker and --gpus-per-worker"
    )
