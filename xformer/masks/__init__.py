"""Masks: see any mask, state its rule, test that it follows the rule and that a model obeys it.

from xformer import masks

masks.check(my_mask_mod, masks.causal() & masks.window(512), n_query=32_768)
masks.describe(attention_mask)
masks.obeyed(model, inputs, masks.causal())
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xformer.lazy import attach

if TYPE_CHECKING:
    from xformer.masks.checking import MaskCheck as MaskCheck
    from xformer.masks.checking import check as check
    from xformer.masks.describing import Description as Description
    from xformer.masks.describing import Descriptions as Descriptions
    from xformer.masks.describing import describe as describe
    from xformer.masks.mask import Mask as Mask
    from xformer.masks.mask import as_mask as as_mask
    from xformer.masks.obedience import Obedience as Obedience
    from xformer.masks.obedience import Violation as Violation
    from xformer.masks.obedience import obeyed as obeyed
    from xformer.masks.recipe import MaskRecipe as MaskRecipe
    from xformer.masks.rules import Rule as Rule
    from xformer.masks.rules import bidirectional as bidirectional
    from xformer.masks.rules import causal as causal
    from xformer.masks.rules import chunked as chunked
    from xformer.masks.rules import dilated as dilated
    from xformer.masks.rules import documents as documents
    from xformer.masks.rules import everywhere as everywhere
    from xformer.masks.rules import neighbourhood as neighbourhood
    from xformer.masks.rules import padding as padding
    from xformer.masks.rules import prefix as prefix
    from xformer.masks.rules import queries as queries
    from xformer.masks.rules import ranges_of as ranges_of
    from xformer.masks.rules import rows_not_empty as rows_not_empty
    from xformer.masks.rules import sinks as sinks
    from xformer.masks.rules import window as window
    from xformer.masks.tables import block_table as block_table
    from xformer.masks.tables import cell_table as cell_table
    from xformer.masks.tables import run_table as run_table
    from xformer.masks.transformers_masks import recorded_mask as recorded_mask
    from xformer.masks.transformers_masks import transformers_mask as transformers_mask
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
