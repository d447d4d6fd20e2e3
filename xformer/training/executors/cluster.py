"""A Ray cluster as the executor needs it: named actors that are started, asked, commanded and ended, and the nodes.

All calls to Ray are here, and none of them waits for an actor. (Except for two seconds at its end.)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from xformer.installed import needed
from xformer.training.executors import Resources
from xformer.training.executors.process import KEEP_MEMORY
from xformer.training.executors.relay import Status
from xformer.training.executors.remote import Job, RemoteRun, Report

NAMESPACE = "xformer"


class LostError(Exception):
    """There is no such actor, or it has died."""

    def __init__(self, is_certain: bool) -> None:
        super().__init__("it has died" if is_certain else "it is not known")
        self.is_certain = is_certain


class RayCluster:
    """A Ray cluster, seen from a process that may come and go. Raises `ConnectionError` where there is none at the address."""

    def __init__(self, address: str) -> None:
        with needed("ray", "The executor ray", "xformer[ray]"):
            import ray

        self.ray: Any = ray
        how: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "namespace": NAMESPACE}
        ray.init(address=address, **how)
        self.head = ray.get_runtime_context().gcs_address
        self._handles: dict[str, Any] = {}
        self._asked: dict[str, Any] = {}

    def start(self, name: str, job: Job, needs: Resources) -> None:
        """Create the actor of this name, unless it is there."""
        how = {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True, "max_restarts": 0}
        wants = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "memory": needs.memory}
        actor = self.ray.remote(**wants, **how, runtime_env={"env_vars": KEEP_MEMORY})(RemoteRun)
        self._handles[name] = actor.remote(job)

    def ask(self, name: str, *question: Any) -> Report | None:
        """Ask an actor what has changed; None while it has not answered. Raises `LostError`."""
        errors = self.ray.exceptions
        try:
            if name not in self._asked:
                self._asked[name] = self._handle(name).poll.remote(*question)
            if not self.ray.wait([self._asked[name]], timeout=0)[0]:
                return None
            report = self.ray.get(self._asked[name], timeout=30)
            del self._asked[name]
            return report
        except (errors.ActorUnavailableError, errors.GetTimeoutError):
            self._asked.pop(name, None)
            return None
        except errors.RayError as error:
            self.forget(name)
            raise LostError(is_certain=True) from error

    def tell(self, name: str, commands: Sequence[tuple[int, str, float | None]]) -> None:
        """Send commands to an actor; the numbers that it has obeyed come with its next answer."""
        with suppress(LostError):
            self._handle(name).command.remote(commands)

    def end(self, name: str) -> None:
        """End an actor, if it is there. Where it answers, its folder goes first."""
        errors = self.ray.exceptions
        with suppress(LostError, errors.RayError, errors.GetTimeoutError):
            actor = self._handle(name)
            with suppress(errors.RayError, errors.GetTimeoutError):
                self.ray.get(actor.close.remote(), timeout=2)
            self.ray.kill(actor)
        self.forget(name)

    def forget(self, name: str) -> None:
        """Forget an actor that has died."""
        self._handles.pop(name, None)
        self._asked.pop(name, None)

    def names(self) -> list[str]:
        """Return the names of all actors of runs, those of other run stores included."""
        found = self.ray.util.list_named_actors(all_namespaces=True)
        return [one["name"] for one in found if one["namespace"] == NAMESPACE]

    def nodes(self) -> list[dict[str, Any]]:
        """Return the living nodes: id, name, and resources CPU, GPU and memory."""
        alive = [node for node in self.ray.nodes() if node["Alive"]]
        return [{"id": node["NodeID"], "name": _name_of(node), **node["Resources"]} for node in alive]

    def free(self) -> Mapping[str, float]:
        """Return the resources that are free, of all nodes together."""
        return self.ray.available_resources()

    def status(self, address: str, nodes: Sequence[Mapping[str, Any]]) -> Status:
        """Return what the screens say of the cluster with these nodes."""
        free = self.free()
        cpus, gpus = (sum(node.get(kind, 0.0) for node in nodes) for kind in ("CPU", "GPU"))
        return Status(address, "", len(nodes), cpus, free.get("CPU", 0.0), gpus, free.get("GPU", 0.0))

    def _handle(self, name: str) -> Any:
        if name not in self._handles:
            try:
                self._handles[name] = self.ray.get_actor(name, namespace=NAMESPACE)
            except ValueError:
                raise LostError(is_certain=False) from None
        return self._handles[name]


def _name_of(node: Mapping[str, Any]) -> str:
    """Return the name that a node was given, else its host's."""
    return node["NodeManagerHostname"] if node["NodeName"] == node["NodeManagerAddress"] else node["NodeName"]
