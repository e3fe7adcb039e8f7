"""The controller framework: reconcilers, informers, leader election and managers.

    App          one process with several managers
    Manager      informers, controllers, leader election, probes, graceful shutdown
    Registry     the reconcilers that exist, by name
    Controller   a reconcile function, the changes that trigger it, its workers
    Informer     a Store that follows the objects of a server, and an ObjectCache, the interface of its users
    PhaseMachine a reconciler for objects that pass through phases
    Schedule     the start times of a cron schedule

These are the public names.  Each module is imported when one of its names is first used, so a process loads only what
it uses.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tapestry.controller.app import App
    from tapestry.controller.controller import Controller, Result, controller_key, ensure_owned, generation_changed
    from tapestry.controller.errors import NotLeading, Terminal
    from tapestry.controller.events import Recorder
    from tapestry.controller.informer import Informer, ObjectCache
    from tapestry.controller.manager import Manager
    from tapestry.controller.phase_table import Next, Phase
    from tapestry.controller.phases import PhaseMachine, PhaseStatus
    from tapestry.controller.queue import Queue
    from tapestry.controller.registry import Registry
    from tapestry.controller.schedule import Schedule
    from tapestry.controller.store import Store

__all__ = [
    "App",
    "Controller",
    "Informer",
    "Manager",
    "Next",
    "NotLeading",
    "ObjectCache",
    "Phase",
    "PhaseMachine",
    "PhaseStatus",
    "Queue",
    "Recorder",
    "Registry",
    "Result",
    "Schedule",
    "Store",
    "Terminal",
    "controller_key",
    "ensure_owned",
    "generation_changed",
]

_MODULES = {
    "App": "app",
    "Controller": "controller",
    "Informer": "informer",
    "Manager": "manager",
    "Next": "phase_table",
    "NotLeading": "errors",
    "ObjectCache": "informer",
    "Phase": "phase_table",
    "PhaseMachine": "phases",
    "PhaseStatus": "phases",
    "Queue": "queue",
    "Recorder": "events",
    "Registry": "registry",
    "Result": "controller",
    "Schedule": "schedule",
    "Store": "store",
    "Terminal": "errors",
    "controller_key": "controller",
    "ensure_owned": "controller",
    "generation_changed": "controller",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
