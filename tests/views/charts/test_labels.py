"""Labels of one axis side by side: shortened by one rule, and never so that two are taken for one."""

from __future__ import annotations

from html import unescape
from typing import Any

import pytest

from tests.kit.labels import written
from torch_vis.views.charts.chart import Axis, Chart, Series, draw
from torch_vis.views.charts.labels import named_ticks, shortened_alike

BERT = "transformers/models/bert/modeling_bert.py"
LINES = [
    f"{BERT}:335 in BertIntermediate.forward",
    f"{BERT}:461 in BertPooler.forward",
    "transformers/activations.py:89 in GELUActivation.forward",
    "transformers/integrations/sdpa_attention.py:174 in sdpa_attention_forward",
    "train.py:3 in <module>",
]


def test_source_lines_keep_the_same_number_of_folders() -> None:
    assert shortened_alike(LINES) == [
        "bert/modeling_bert.py:335 in BertIntermediate.forward",
        "bert/modeling_bert.py:461 in BertPooler.forward",
        "transformers/activations.py:89 in GELUActivation.forward",
        "integrations/sdpa_attention.py:174 in sdpa_attention_forward",
        "train.py:3 in <module>",
    ]


def test_labels_that_fit_stay_whole() -> None:
    assert shortened_alike(LINES, 80) == LINES and shortened_alike([]) == []


def test_files_of_one_name_keep_the_folder_that_tells_them_apart() -> None:
    deep = "of/many/folders/that/go/on/and/on"
    lines = [f"{deep}/{part}/layers/mlp.py:40 in Mlp.forward" for part in ("vit", "swin")]
    assert shortened_alike(lines, 36) == [
        "vit/layers/mlp.py:40 in Mlp.forward",
        "swin/layers/mlp.py:40 in Mlp.forward",
    ]
    assert [text[:3] for text in shortened_alike(lines, 30)] == ["vit", "swi"]


def test_folders_of_another_system() -> None:
    lines = [
        rf"C:\Users\me\a long name\project\{name}.py:7 in Model.forward_features" for name in ("net", "train")
    ]
    assert shortened_alike(lines, 40) == [
        f"{name}.py:7 in Model.forward_features" for name in ("net", "train")
    ]


def test_a_part_of_a_path_is_written_alike_wherever_it_stands() -> None:
    paths = [
        "12 × bernoulli_ → dropout → native_layer_norm in encoder.layer.*.attention.output",
        "24 × mul → clone → sum in encoder.layer.*.attention.self",
        "4: embedding → add in embeddings",
        "844: addmm → tanh in pooler",
    ]
    assert shortened_alike(paths, 66) == [
        "12 × bernoulli_ → dropout → native_layer_norm in en.l.*.a.output",
        "24 × mul → clone → sum in en.l.*.a.self",
        "4: embedding → add in embeddings",
        "844: addmm → tanh in pooler",
    ]


def test_a_label_that_will_not_fit_does_not_shorten_the_others_further() -> None:
    names = ["addmm in encoder.layer.6.intermediate.dense", f"{'embedding_' * 5}backward in embeddings.words"]
    assert shortened_alike(names, 40)[0] == "addmm in en.layer.6.intermediate.dense"


def test_a_short_form_tells_a_part_from_those_beside_it() -> None:
    names = [f"layer{number}.0.downsample.convolution" for number in (1, 2)] + [
        "layers.0.downsample.convolution"
    ]
    short = shortened_alike(names, 24)
    assert short == ["layer1.0.d.convolution", "layer2.0.d.convolution", "layers.0.d.convolution"]


def test_of_a_long_chain_the_first_and_the_last_are_kept() -> None:
    chain = "582: add → threshold_backward → native_batch_norm_backward in layer1"
    assert shortened_alike([chain]) == ["582: add → … → native_batch_norm_backward in layer1"]


@pytest.mark.parametrize("where", [3, 30, 70, 130])
def test_what_is_cut_short_still_differs_where_it_differed(where: int) -> None:
    long = (
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<at::native::BinaryFunctor<float>>>"
        * 2
    )
    kernels = [long[:where] + part + long[where:] for part in ("Mul", "Add", "Exp")]
    short = shortened_alike(kernels)
    assert len(set(short)) == 3 and all(len(text) <= 60 for text in short)


def test_what_stands_in_a_module_is_read_as_that_however_long_its_path() -> None:
    texts = [f"gelu_backward in encoder.layer.{n}.intermediate.intermediate_act_fn" for n in (1, 3)]
    found = shortened_alike([*texts, "mm in encoder.layer.3.output.dense"], 36)
    assert all(len(text) <= 36 for text in found)
    for number, text in zip((1, 3), found):
        assert text.startswith(f"gelu_backward in e.l.{number}.") and text.endswith("act_fn")


def test_kernels_are_told_by_what_they_do() -> None:
    start = "void at::native::vectorized_elementwise_kernel<4, at::native::"
    end = ", std::array<char*, 3ul> >(int, std::array<char*, 3ul>)"
    functors = (
        "CUDAFunctor_add<float>",
        "BinaryFunctor<float, at::native::binary_internal::MulFunctor<float> >",
    )
    first, second, copy = shortened_alike(
        [*(start + name + end for name in functors), "Memcpy HtoD (Device)"]
    )
    assert "Functor_add<float>" in first and "MulFunctor" in second and copy == "Memcpy HtoD (Device)"
    assert first.startswith("vectorized") and second.startswith("vectorized")


def test_names_under_an_axis_are_shortened_alike() -> None:
    names = [f"encoder.layer.{block}.attention.output.LayerNorm" for block in range(3)] + ["pooler.dense"]
    assert named_ticks(names)[1] == [f"e.l.{block}.a.output.LayerNorm" for block in range(3)] + [
        "pooler.dense"
    ]


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
@pytest.mark.parametrize("kind", ["bars", "dots"])
def test_rows_of_a_chart_are_shortened_alike_and_whole_on_hover(renderer: str, kind: Any) -> None:
    times = Series("t", LINES, [5, 4, 3, 2, 1])
    figure = draw(Chart(kind, "T", Axis("line"), Axis("time", "ns"), [times]), renderer)
    assert [unescape(label) for label in written(figure, "y")] == shortened_alike(LINES) != LINES
    if renderer == "plotly":
        assert [unescape(text).split("<br>")[0] for text in figure.data[0].hovertext] == LINES


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_what_comes_first_is_marked_however_crowded_a_chart_is(renderer: str) -> None:
    """Where the whole text would lie on other points, the first word of it stands there alone."""
    crowd = [(x, y) for x in range(20, 200, 3) for y in range(1, 60)]
    texts = [f"point {place}" for place in range(len(crowd))]
    series = [
        Series("others", [x for x, _ in crowd], [y for _, y in crowd], marks=texts),
        Series("ours", [12], [30], marks=["first: one with a long name, somewhere"]),
    ]
    made = draw(Chart("points", "Crowded", Axis("x"), Axis("y"), series), renderer)
    texts = (
        [note.text for note in made.layout.annotations]
        if renderer == "plotly"
        else [text.get_text() for text in made.axes[0].texts]
    )
    assert "first" in texts
