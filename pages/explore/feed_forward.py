"""Feed-forward: what do the neurons do? Which fire, on what, what they say, and what happens without them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import streamlit as st

from pages.shared import resources
from pages.shared.components.prediction_strip import Lane, prediction_strip
from pages.shared.lanes import lanes
from pages.shared.notebook import footer
from pages.shared.session import View, open_page, toggle_intervention
from xformer.analysis.neurons import (
    Survey,
    activity,
    activity_of,
    feed_forward_layers,
    neuron_table,
    promoted,
    speaks_directly,
    survey,
)
from xformer.interventions import join
from xformer.viz import theme
from xformer.viz.feed_forward import activation_map, activity_chart, by_mean, neuron_chart, promotion_chart

SAMPLE, SEED, BEST = 2000, 0, 8
STAGES = {"post": "after", "pre": "before"}
ORDERS = {"sorted": "sorted", "plain": "by number"}


def page() -> None:
    view = open_page("Feed-forward", "What do the neurons do?")
    original, changed = view.original(), view.changed()
    prediction_strip(lanes(view.task, original, changed, f"says, {view.what_changed()}"), key="strip")
    _say_what_changed(view, original, changed)
    paths = list(feed_forward_layers(view.checkpoint.model))
    if not paths:
        _without(view)
        return
    runs = {"original": original} if changed is None else {"original": original, view.what_changed(): changed}
    path, stage, order = _ask(view, paths)
    chosen = _chosen_neuron(view)
    _map_section(view, runs, path, stage, order, chosen)
    firing = st.container()  # filled last: the sample takes a moment when a model is met for the first time
    position, table = _token_section(view, runs, path)
    found = _survey(view.model)
    with firing:
        shares = _activity_section(view, runs, paths, found)
    _neuron_section(view, runs, path, found)
    view.share(
        layer=path.removesuffix(".ffn"),
        stage=stage,
        order=order,
        pos=str(position),
        neuron=str(st.session_state["ff_neuron"]),
    )
    _what_to_notice(view, path, shares, found, table, position)


@st.cache_resource(max_entries=16, show_spinner=False)
def _survey(model: str) -> Survey:
    checkpoint = resources.checkpoint(model)
    assert checkpoint.task is not None
    return survey(checkpoint.model, checkpoint.task, SAMPLE, SEED, best=BEST)


@st.cache_data(max_entries=256, show_spinner=False)
def _table(model: str, source: tuple[int, ...], mask: str, changes: str, path: str, position: int) -> pd.DataFrame:
    checkpoint, run = resources.checkpoint(model), resources.run(model, source, mask, changes)
    assert checkpoint.task is not None
    labels = checkpoint.task.vocabulary.labels
    return neuron_table(checkpoint.model, run.trace, path, position, labels, run.example.labels[0])


def _dark() -> bool:
    return st.context.theme.type == "dark"


def _act(view: View) -> str:
    return {"relu": "ReLU", "gelu": "GELU"}[view.checkpoint.config.activation]


def _title(view: View, path: str) -> str:
    stack, layer, _ = path.split(".")
    return f"{stack if view.task.config.architecture == 'encoder-decoder' else 'layer'} {int(layer) + 1}"


def _reads(view: View, run: resources.Run, path: str) -> list[str]:
    """The tokens at the positions of a layer."""
    in_target = run.example.target is not None and path.startswith("decoder")
    tokens = run.example.target if in_target else run.example.stream
    assert tokens is not None
    return [view.task.vocabulary.labels[token] for token in tokens[0].tolist()]


def _say_what_changed(view: View, original: resources.Run, changed: resources.Run | None) -> None:
    n = len(original.answer)
    if changed is None:
        st.caption(f"{original.n_right} of {n} right, loss {original.loss:.4f} nats.")
    elif original.trace.logits.equal(changed.trace.logits):
        st.info(f"With {view.what_changed()} this model says exactly what it says anyway.", icon=":material/equal:")
    else:
        st.caption(
            f"With {view.what_changed()}, {changed.n_right} of {n} are right instead of {original.n_right}; "
            f"the loss goes from {original.loss:.4f} to {changed.loss:.4f} nats. Outlined tokens changed."
        )


def _without(view: View) -> None:
    """A model that has no neurons: say so, and where there are some."""
    view.share()
    config = view.checkpoint.config
    n = config.n_layers
    st.info(
        f"This model has no feed-forward layer: its {n} layer{'s are' if n > 1 else ' is'} attention alone, so there are no "
        "neurons to look at. What it says above, it says by looking things up.",
        icon=":material/hub:",
    )
    others = [
        name for name in resources.shipped() if not resources.usable(name) and resources.checkpoint(name).config.d_ff
    ]
    if others:
        st.markdown("These models have some:")
        with st.container(horizontal=True):
            for name in others:
                d_ff = resources.checkpoint(name).config.d_ff
                st.button(f"{name} · {d_ff} neurons a layer", on_click=_use_model, args=(name,), key=f"use_{name}")
    with st.container(border=True):
        st.markdown("**What to notice**")
        task = "Moving tokens is what attention does, and this task asks for little else" if _moves(view) else "Even so"
        st.markdown(
            f"{task}: the model gets {view.original().n_right} of {len(view.original().answer)} right without a single neuron."
        )


def _moves(view: View) -> bool:
    return view.task.config.name in ("reverse", "copy")


def _use_model(name: str) -> None:
    st.session_state["model"] = name


def _follow_the_link(view: View, paths: list[str]) -> None:
    """Take over the choices of a link once; then keep what is chosen fitting the model."""
    d_ff = view.checkpoint.config.d_ff
    n_positions = {path: view.original().trace[f"{path}.post"].shape[1] for path in paths}
    if "ff_followed" not in st.session_state:
        st.session_state["ff_followed"] = True
        asked = st.query_params.to_dict()
        choices = (("layer", "ff_layer", {p.removesuffix(".ffn"): p for p in paths}),
                   ("stage", "ff_stage", {s: s for s in STAGES}), ("order", "ff_order", {o: o for o in ORDERS}),
                   ("neuron", "ff_neuron", {str(n): n for n in range(d_ff)}),
                   ("pos", "ff_pos", {str(n): n for n in range(max(n_positions.values()))}))  # fmt: skip
        for name, key, options in choices:
            if asked.get(name) in options:
                st.session_state[key] = options[asked[name]]
            elif name in asked:
                what = {"pos": "position"}.get(name, name)
                st.warning(
                    f"The link asks for a {what} that is not here, so another is shown.", icon=":material/link_off:"
                )
    if st.session_state.get("ff_layer") not in paths:
        st.session_state["ff_layer"] = paths[-1]
    st.session_state.setdefault("ff_stage", "post")
    st.session_state.setdefault("ff_order", "sorted")
    if not 0 <= st.session_state.get("ff_pos", 0) < n_positions[st.session_state["ff_layer"]]:
        st.session_state["ff_pos"] = 0
    st.session_state.setdefault("ff_pos", 0)


def _chosen_neuron(view: View) -> int:
    """The neuron that is looked at: the visitor's, else the most active one of the layer."""
    path, d_ff = st.session_state["ff_layer"], view.checkpoint.config.d_ff
    if not 0 <= st.session_state.get("ff_neuron", -1) < d_ff:
        post = view.original().trace[f"{path}.post"][0]  # [pos, d_ff]
        st.session_state["ff_neuron"] = int(post.mean(dim=0).argmax())
    return st.session_state["ff_neuron"]


def _ask(view: View, paths: list[str]) -> tuple[str, str, str]:
    _follow_the_link(view, paths)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        path = st.segmented_control(
            "Layer", paths, format_func=lambda p: _title(view, p).removeprefix("layer "), required=True, key="ff_layer",
            persist_state="session",
            width="content",
        )  # fmt: skip
        stage = st.segmented_control(
            f"{_act(view)} …", list(STAGES), format_func=STAGES.__getitem__, required=True, key="ff_stage",
            persist_state="session", width="content",
        )  # fmt: skip
        order = st.segmented_control(
            "Neurons", list(ORDERS), format_func=ORDERS.__getitem__, required=True, key="ff_order", persist_state="session",
            width="content",
        )  # fmt: skip
        muted = f"mute:{path}" in [intervention.text for intervention in view.interventions]
        st.button(
            f"Bring {_title(view, path)} back" if muted else f"Mute {_title(view, path)}",
            icon=":material/volume_up:" if muted else ":material/volume_off:",
            on_click=toggle_intervention,
            args=(f"mute:{path}",),
            key="mute_layer",
            help="The whole feed-forward layer adds nothing; the model runs again.",
        )
    return path, stage, order


def _map_section(view: View, runs: dict[str, resources.Run], path: str, stage: str, order: str, chosen: int) -> None:
    values = {name: run.trace[f"{path}.{stage}"][0].numpy(force=True) for name, run in runs.items()}  # [pos, d_ff]
    d_ff = view.checkpoint.config.d_ff
    post = runs["original"].trace[f"{path}.post"][0].numpy(force=True)
    ranking = by_mean(post) if order == "sorted" else np.arange(d_ff)
    signed = stage == "pre" or view.checkpoint.config.activation != "relu"
    limit = theme.signed_limit(np.stack(list(values.values())))
    for index, (name, run) in enumerate(runs.items()):
        if len(runs) > 1:
            st.markdown("**Original**" if name == "original" else f"**With {name}**, in the order of the original")
        figure = activation_map(
            values[name], _reads(view, run, path), ranking, signed=signed, limit=limit, dark=_dark(), chosen=chosen
        )
        config = {"displaylogo": False, "modeBarButtonsToRemove": ["lasso2d", "select2d"]}
        st.plotly_chart(figure, theme="streamlit", key=f"map_{index}", config=config)
    act = _act(view)
    what = f"Blue fires, orange is what {act} cuts off." if stage == "pre" else f"What {act} lets through."
    st.caption(
        f"{_title(view, path).capitalize()}: {d_ff} neurons, one column each, at every position. {what} "
        "▲ is the neuron chosen below. Drag to zoom, double-click to return."
    )
    shown = runs[view.what_changed() if view.is_changed else "original"]
    lines = [
        "from xformer.viz.feed_forward import activation_map, by_mean",
        f'values = trace["{path}.{stage}"][0].numpy()',
        f'order = by_mean(trace["{path}.post"][0].numpy())'
        if order == "sorted"
        else f"order = torch.arange({d_ff}).numpy()",
        f"activation_map(values, {_reads(view, shown, path)}, order, signed={signed}, limit={limit:.4f}, dark=False)",
    ]
    table = pd.concat([pd.DataFrame(rows).assign(run=name, position=range(len(rows))) for name, rows in values.items()])
    footer(view, lines, table, "activations")


def _activity_section(view: View, runs: dict[str, resources.Run], paths: list[str], found: Survey) -> pd.DataFrame:
    st.subheader("How many of them fire", anchor=False)
    over = f"{found.n_inputs:,} inputs"
    frames = [
        activity_of(run.trace, paths, "this input" if len(runs) == 1 else f"this input, {name}")
        for name, run in runs.items()
    ]
    frames.append(activity(found.fired, found.n_positions, over))
    table = pd.concat(frames)
    table = table.sort_values("layer", key=lambda column: column.map(paths.index), kind="stable")
    titles = {path: _title(view, path) for path in paths}
    st.altair_chart(activity_chart(table, titles, dark=_dark()), theme="streamlit", width="stretch", key="activity")
    tokens = next(iter(found.n_positions.values()))
    st.caption(
        f"A neuron fires where its activation is above 0. {over} sampled from the task (seed {found.seed}; "
        f"{tokens:,} tokens in the first layer, the model as trained); "
        "dead means dead on those inputs."
    )
    lines = [
        "from xformer.analysis.neurons import activity, survey",
        "from xformer.viz.feed_forward import activity_chart",
        f"found = survey(checkpoint.model, checkpoint.task, {found.n_inputs}, {found.seed})",
        'frame = activity(found.fired, found.n_positions, "the sample")',
        f"activity_chart(frame, {titles}, dark=False)",
    ]
    footer(view, lines, table, "activity")
    return frames[-1]


def _token_section(view: View, runs: dict[str, resources.Run], path: str) -> tuple[int, pd.DataFrame]:
    st.subheader("The most active neurons of one token", anchor=False)
    name = view.what_changed() if view.is_changed else "original"
    run, own = runs[name], name == "original"
    reads = _reads(view, run, path)
    position = st.select_slider(
        "Position",
        range(len(reads)),
        format_func=lambda at: f"{at}: reads {reads[at]}",
        key="ff_pos",
        persist_state="session",
    )
    mask, changes = (resources.MASKS[0], "") if own else (view.mask, join(view.interventions))
    table = _table(view.model, view.source, mask, changes, path, position)
    shown = table.copy()
    if not shown["flips"].any():
        shown = shown.drop(columns="flips")
    columns: dict = {
        "neuron": st.column_config.NumberColumn("neuron", format="%d", width=60),
        "activation": st.column_config.NumberColumn("activation", format="%.3f", width=80),
        "promotes": st.column_config.TextColumn(
            "promotes", width=90, help="The three logits that it raises most, on the direct path."
        ),
        "suppresses": st.column_config.TextColumn("suppresses", width=90, help="The three that it lowers most."),
        "loss_change": st.column_config.NumberColumn(
            "if silenced", format="%+.1e", width=85, help="By how many nats the loss changes; the model was run for it."
        ),
        "flips": st.column_config.NumberColumn("flips", format="%d", width=50, help="How many answers become others."),
    }
    if not own:
        before = runs["original"].trace[f"{path}.post"][0, position]
        shown.insert(2, "originally", [before[neuron].item() for neuron in shown["neuron"]])
        columns["originally"] = st.column_config.NumberColumn("originally", format="%.3f", width=80)
    model = view.checkpoint.model
    speaks = speaks_directly(model, path)
    if not speaks:
        shown = shown.drop(columns=["promotes", "suppresses"])
    left, right = st.columns([5, 4] if own else [3, 2]) if speaks else (st.container(), None)
    with left:
        event = st.dataframe(
            shown,
            hide_index=True,
            column_config=columns,
            on_select="rerun",
            selection_mode="single-row",
            key="ff_table",
        )
        rows = event.selection.rows  # pyright: ignore[reportAttributeAccessIssue]
        ticket = (tuple(rows), path, position, view.model)
        if rows and st.session_state.get("ff_table_followed") != ticket:
            st.session_state["ff_table_followed"] = ticket
            st.session_state["ff_neuron"] = int(table["neuron"].iloc[rows[0]])
            st.rerun()
        st.caption(
            f"{'With ' + name + ', p' if not own else 'P'}osition {position}. Choose a row to look closer at that neuron below."
        )
    if right is not None:
        effect = (promoted(model, path)[table["neuron"].tolist()] * 1.0).numpy(force=True)
        scaled = effect * table["activation"].to_numpy()[:, None]  # [neuron, vocab]
        chart = promotion_chart(scaled, table["neuron"].tolist(), view.task.vocabulary.labels, dark=_dark())
        right.altair_chart(chart, theme="streamlit", width="stretch", key="promotion")
        right.caption(
            "Activation × its row of W₂, through the unembedding: what it adds to each logit here. " + _direct(view)
        )
    else:
        st.caption(
            "These neurons stand in the encoder: what they write reaches the output only through the decoder’s "
            "cross-attention, so no tokens can be read off them directly."
        )
    lines = [
        "from xformer.analysis.neurons import neuron_table",
        f"example = checkpoint.task.example({list(run.example.source)})",
        f'neuron_table(checkpoint.model, trace, "{path}", {position}, checkpoint.task.vocabulary.labels, example.labels[0])',
    ]
    footer(view, lines, shown, "neurons")
    return position, table


def _direct(view: View) -> str:
    norm = view.checkpoint.config.norm
    if norm == "post":
        return "This direct path ignores the norms and layers that follow, so signs tell more than sizes."
    return "This direct path ignores the last norm and the layers that follow." if norm == "pre" else (
        "This direct path ignores the layers that follow."
    )  # fmt: skip


def _neuron_section(view: View, runs: dict[str, resources.Run], path: str, found: Survey) -> None:
    st.subheader("One neuron", anchor=False)
    d_ff = view.checkpoint.config.d_ff
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        neuron = int(
            st.number_input(
                f"Neuron (0 to {d_ff - 1})", min_value=0, max_value=d_ff - 1, step=1, key="ff_neuron",
                persist_state="session", width=180,
            )
        )  # fmt: skip
        text = f"neuron:{path}.{neuron}"
        silent = text in [intervention.text for intervention in view.interventions]
        st.button(
            f"Let #{neuron} speak again" if silent else f"Silence #{neuron}",
            icon=":material/volume_up:" if silent else ":material/volume_off:",
            on_click=toggle_intervention,
            args=(text,),
            key="silence_neuron",
            help="It stays at 0 at every position; the model runs again.",
        )
        fired, total = int(found.fired[path][neuron]), found.n_positions[path]
        st.markdown(
            f"fires at **{fired / total:.1%}** of the {total:,} tokens of the sample, "
            f"at most with **{found.peak[path][0, neuron].item():.3f}**"
        )
    left, right = st.columns([3, 4])
    with left:
        values = {name: run.trace[f"{path}.post"][0, :, neuron].numpy(force=True) for name, run in runs.items()}
        chart = neuron_chart(values, _reads(view, runs["original"], path), dark=_dark())
        st.markdown(f"**#{neuron} on this input**")
        st.altair_chart(chart, theme="streamlit", width="stretch", key="neuron_here")
    with right:
        st.markdown(f"**The {BEST} sampled inputs that excite #{neuron} most**, the position outlined")
        _exciting(view, path, neuron, found)


def _exciting(view: View, path: str, neuron: int, found: Survey) -> None:
    label = view.task.vocabulary.labels
    texts = found.targets if found.targets and path.startswith("decoder") else found.inputs
    shown = []
    for value, (index, position) in zip(
        found.peak[path][:, neuron].tolist(), found.where[path][:, neuron].tolist(), strict=True
    ):
        if value <= 0:
            continue
        tokens = tuple(label[token] for token in texts[index])
        shown.append(Lane(f"{value:.3f}", tokens, moved=tuple(at == position for at in range(len(tokens)))))
    if not shown:
        st.info("No sampled input excites it: this neuron is dead on the sample.", icon=":material/do_not_disturb_on:")
        return
    prediction_strip(shown, key="exciting")
    which = " The tokens are those that the decoder reads." if texts is found.targets else ""
    st.caption(f"Searched {found.n_inputs:,} inputs of the task, seed {found.seed}; each input counts once.{which}")


def _what_to_notice(
    view: View, path: str, shares: pd.DataFrame, found: Survey, table: pd.DataFrame, position: int
) -> None:
    row = shares[shares["layer"] == path].iloc[0]
    biggest = table.loc[table["loss_change"].abs().idxmax()]
    with st.container(border=True):
        st.markdown("**What to notice**")
        st.markdown(
            f"In {_title(view, path)}, **{row['dead']} of {row['neurons']}** neurons are dead over the {found.n_inputs:,} "
            f"sampled inputs, and at an average token **{row['share_at_once']:.0%}** fire at once: "
            "the work is spread over many."
        )
        said = f"{biggest['loss_change']:+.2g} nats".replace("-", "−")
        flips = int(biggest["flips"])
        st.markdown(
            ("One neuron can matter" if flips else "So one neuron rarely matters")
            + f": of the {len(table)} most active at position {position}, silencing **#{int(biggest['neuron'])}** moves the "
            f"loss the most, by {said}, and changes {flips} of the answers. Mute the whole layer for comparison."
        )
        st.markdown(
            f"Switch to **before**: {_act(view)} is what turns a smooth sheet into on and off. Look through the exciting "
            "inputs for what they share: the same token, the same place, or the same length."
        )


page()
