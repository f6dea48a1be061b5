from reluformer.study.report.colours import INK, colours, in_page, style_sheet


def test_every_line_has_its_own_colour_while_there_are_any():
    found = colours([f"{family} {i}" for family in ("ReLU", "softmax", "sparse") for i in range(5)])
    assert len(set(found)) == 15
    assert len(colours(map(str, range(40)))) == 40


def test_the_families_keep_their_colours():
    assert colours(["softmax", "ReLU"]) == list(reversed(colours(["ReLU", "softmax"])))


def test_a_plot_in_the_page_follows_its_mode():
    svg = in_page(f'<path style="stroke: {INK}"/>')
    variable = svg[svg.index("--") : svg.index(")")]
    assert INK not in svg
    assert f"{variable}:{INK};" in style_sheet(dark=False)
    assert f"{variable}:" in style_sheet(dark=True)
