"""A Ray cluster as seen by the executor: its nodes, and named actors to start, poll, command and end.

All calls to Ray are in this module. None of them waits for an actor, except for up to two seconds when ending it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from xformer.installed import needed
from xformer.training.executors import Resources
from xformer.training.executors.relay import Status
from xformer.training.executors.remote import RemoteJob, RemoteReport, RemoteRun

NAMESPACE = "xformer"


class LostError(Exception):
    """The actor has died (`is_certain`), or the cluster does not know it."""

    def __init__(self, is_certain: bool) -> None:
        super().__init__("it has died" if is_certain else "it is not known")
        self.is_certain = is_certain


class RayCluster:
    """A connection to a Ray cluster. Actors outlive it. Raises `ConnectionError` if there is no cluster at the address."""

    def __init__(self, address: str) -> None:
        with needed("ray", "The executor ray", "xformer-studio[ray]"):
            import ray

        self.ray: Any = ray
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "namespace": NAMESPACE}
        ray.init(address=address, **options)
        self.head = ray.get_runtime_context().gcs_address
        self._handles: dict[str, Any] = {}
        self._pending: dict[str, Any] = {}
        """The result of the unanswered request to each actor, by name."""

    def start(self, name: str, job: RemoteJob, needs: Resources) -> None:
        """Create the actor of this name unless it exists."""
        options = {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
        options["max_restarts"] = 0
        resources = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "memory": needs.memory}
        actor = self.ray.remote(**resources, **options)(RemoteRun)
        self._handles[name] = actor.remote(job)

    def ask(self, name: str, *arguments: Any) -> RemoteReport | None:
        """Request what has changed on an actor; None until its report has arrived. Raises `LostError`."""
        errors = self.ray.exceptions
        try:
            if name not in self._pending:
                self._pending[name] = self._handle(name).poll.remote(*arguments)
            if not self.ray.wait([self._pending[name]], timeout=0)[0]:
                return None
            report = self.ray.get(self._pending[name], timeout=30)
            del self._pending[name]
            return report
        except (errors.ActorUnavailableError, errors.GetTimeoutError):
            self._pending.pop(name, None)
            return None
        except errors.RayError as error:
            self.forget(name)
            raise LostError(is_certain=True) from error

    def tell(self, name: str, commands: Sequence[tuple[int, str, float | None]]) -> None:
        """Send numbered commands to an actor; its next report has the number of the last command that it handled."""
        with suppress(LostError):
            self._handle(name).command.remote(commands)

    def end(self, name: str) -> None:
        """End an actor if it exists. If it responds, it removes its folder first."""
        errors = self.ray.exceptions
        with suppress(LostError, errors.RayError, errors.GetTimeoutError):
            actor = self._handle(name)
            with suppress(errors.RayError, errors.GetTimeoutError):
                self.ray.get(actor.close.remote(), timeout=2)
            self.ray.kill(actor)
        self.forget(name)

    def forget(self, name: str) -> None:
        """Discard the handle and the pending request of an actor."""
        self._handles.pop(name, None)
        self._pending.pop(name, None)

    def names(self) -> list[str]:
        """Return the names of all actors that train runs, including those of other run stores."""
        actors = self.ray.util.list_named_actors(all_namespaces=True)
        return [actor["name"] for actor in actors if actor["namespace"] == NAMESPACE]

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes that are alive: id, name, and the resources CPU, GPU and memory."""
        alive = [node for node in self.ray.nodes() if node["Alive"]]
        return [{"id": node["NodeID"], "name": _name_of(node), **node["Resources"]} for node in alive]

    def free(self) -> Mapping[str, float]:
        """Return the free resources of all nodes together."""
        return self.ray.available_resources()

    def status(self, address: str, nodes: Sequence[Mapping[str, Any]]) -> Status:
        """Return the status of the cluster for display, given its nodes."""
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
    """Return the assigned name of a node, or else its host name."""
    return node["NodeManagerHostname"] if node["NodeName"] == node["NodeManagerAddress"] else node["NodeName"]
