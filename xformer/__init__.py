"""A transformer written to be inspected: `read` runs a model and records it, `analysis` returns tables, `viz` figures.

Public names are imported on first use, so that `import xformer` does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xformer.lazy import attach

if TYPE_CHECKING:
    from xformer import analysis as analysis
    from xformer import edits as edits
    from xformer import masks as masks
    from xformer import viz as viz
    from xformer.checkpoints import Checkpoint as Checkpoint
    from xformer.checkpoints import load as load
    from xformer.checkpoints import save as save
    from xformer.config import ModelConfig as ModelConfig
    from xformer.config import TaskConfig as TaskConfig
    from xformer.config import TrainConfig as TrainConfig
    from xformer.decoding import Sampling as Sampling
    from xformer.decoding import Step as Step
    from xformer.decoding import decode as decode
    from xformer.doctor.diagnose import Diagnosis as Diagnosis
    from xformer.doctor.diagnose import diagnose as diagnose
    from xformer.doctor.localise import RunComparison as RunComparison
    from xformer.doctor.localise import compare_runs as compare_runs
    from xformer.live.export import save_live as save_live
    from xformer.long_inputs import AttentionSummary as AttentionSummary
    from xformer.long_inputs import attention_summary as attention_summary
    from xformer.model import Transformer as Transformer
    from xformer.notebook_app import show as show
    from xformer.program.operations import Operations as Operations
    from xformer.program.operations import operations as operations
    from xformer.reading import Reading as Reading
    from xformer.reading import gradients as gradients
    from xformer.reading import read as read
    from xformer.tasks import Task as Task
    from xformer.trace import Trace as Trace
    from xformer.trace import record as record
    from xformer.training.evaluate import Progress as Progress
    from xformer.training.loop import iter_train as iter_train
    from xformer.training.loop import train as train
    from xformer.training.many import iter_train_many as iter_train_many
    from xformer.training.many import train_many as train_many
    from xformer.training.sweeps import sweep as sweep
    from xformer.widgets.attention_map import AttentionMap as AttentionMap
    from xformer.widgets.attention_map import attention_map as attention_map
    from xformer.widgets.attention_view import AttentionView as AttentionView
    from xformer.widgets.attention_view import attention_view as attention_view
    from xformer.widgets.code_view import CodeView as CodeView
    from xformer.widgets.code_view import code_view as code_view
    from xformer.widgets.page import save_html as save_html
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
