"""The page for a browser, in headless Chromium: it opens in silence, and hover, zoom, pan and keys do what they say."""

import json
import re
import shutil
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from zbopt.cli import run
from zbopt.heuristics import HEURISTICS
from zbopt.problem.instance import Instance, Kind
from zbopt.problem.schedule import Event, Schedule, write_schedule
from zbopt.reports.chart_data import common_tick
from zbopt.reports.web import Entry, web_page

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="no Chromium here; install Debian's chromium and chromium-driver"
)
UNIT = HEURISTICS["zb-h1"](Instance.uniform(stages=4, microbatches=8, memory_cap=6))
"""It runs from 0 to m(F + B + W) + p - 1 = 27; stage 0 runs F0 to F3, then waits from 4 to 7 for B0 of stage 1."""
FUSED = HEURISTICS["1f1b"](Instance.uniform(stages=4, microbatches=8, fused_backward_ticks=2))
"""It runs from 0 to (m + p - 1)(F + BW) = 33."""


def page_of(*schedules: Schedule) -> str:
    """Return the page of ``schedules``."""
    return web_page([Entry(name=f"s{i}.json", schedule=schedule) for i, schedule in enumerate(schedules)])


def data_of(page: str) -> Any:
    """Return the numbers that the page's script reads."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_page_loads_nothing() -> None:
    """No address but the namespace-free ones of its own: no link, source, import or font from elsewhere."""
    page = page_of(UNIT, FUSED)
    assert "http" not in page.replace("http-equiv", "")
    assert re.findall(r"(?:src|href)=\"([^\"]*)\"", page) == ["data:,"]
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_figures_name_their_denominators() -> None:
    """1F1B at p=4, m=8: 33 ticks, each stage busy m(F + BW) = 24, so that 4 x 9 = 36 of 4 x 33 are idle."""
    page = page_of(FUSED)
    assert "<dt>idle, of the makespan</dt><dd>27.27 %: 36 of 4 x 33 ticks</dd>" in page
    assert "<td>all</td><td>6</td><td>12</td><td>18</td><td>36</td><td>27.27 %</td>" in page


def test_waits_are_those_of_the_schedule() -> None:
    """ZB-H1 at p=4: stage 0 idles from 4 to 7 before its B0, for B0 of stage 1, which ends at 7: by hand."""
    data = data_of(page_of(UNIT))
    schedule, kinds = data["schedules"][0], [kind["name"] for kind in data["kinds"]]
    (gap,) = [gap for gap in schedule["idle"] if gap[0] == 0]
    assert gap[1:3] == [4, 7]
    before, giver = gap[4], gap[5]
    assert (kinds[schedule["kind"][before]], schedule["virtual"][before], schedule["microbatch"][before]) == ("B", 0, 0)
    assert (kinds[schedule["kind"][giver]], schedule["virtual"][giver], schedule["end"][giver]) == ("B", 1, 7)


def test_memory_starts_and_ends_empty() -> None:
    """Every stage takes and gives back m = 8 activations; the peak is the one of ZB-H1, p = 4, below the cap 6."""
    memory = data_of(page_of(UNIT))["schedules"][0]["memory"]
    assert memory["cap"] == [6] * 4
    for stage in memory["stages"]:
        assert sum(change for change in stage["change"] if change > 0) == 8
        assert stage["live"][-1] == 0
    assert max(memory["stages"][0]["live"]) == 4


def test_one_axis_for_ticks_of_different_lengths() -> None:
    """10 us and 25 us share 5000 ns only as whole ns: neither divides the other. 10 us and 1 us share 1 us."""
    assert common_tick([("a", "10us"), ("b", "1us")]) == ("1000ns", [10, 1])
    assert common_tick([("a", "10us"), ("b", "25us")]) == ("1ns", [10_000, 25_000])
    assert common_tick([("a", "unit"), ("b", "unit")]) == ("unit", [1, 1])
    with pytest.raises(ValueError, match=r"^a counts in time and b in units without a length; make a page for each$"):
        common_tick([("a", "1us"), ("b", "unit")])


def test_times_of_a_coarser_tick_are_stretched() -> None:
    """A schedule of 27 ticks of 10 us beside one of 1 us ends at 270 of the page's ticks."""
    timed = [
        UNIT.model_copy(update={"instance": UNIT.instance.model_copy(update={"tick": tick})})
        for tick in ("10us", "1us")
    ]
    first, second = data_of(page_of(*timed))["schedules"]
    assert (max(first["end"]), max(second["end"])) == (270, 27)


def test_names_are_escaped() -> None:
    """A file's name is text, whatever characters it has, in the page and in its data."""
    page = web_page([Entry(name="</script><b>", schedule=UNIT, violations=(("overlap", "<i>"),))])
    assert "<b>" not in page
    assert "overlap: &lt;i&gt;" in page
    assert "Not a valid schedule: 1 violation." in page


def test_empty_schedule_is_refused() -> None:
    """An empty schedule is refused: there is nothing to draw."""
    with pytest.raises(ValueError, match=r"^s0\.json: has no event on a stage; give a schedule that runs something$"):
        page_of(UNIT.model_copy(update={"events": ()}))


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two files on one page; an invalid one is on it, with its violations, and the exit code is 1."""
    one, two, page = tmp_path / "one.json", tmp_path / "two.json", tmp_path / "report.html"
    write_schedule(UNIT, one)
    write_schedule(FUSED, two)
    assert run(["report", str(one), str(two), "-o", str(page)]) == 0
    assert capsys.readouterr().out == f"written to {page}\n"
    assert "<h2>Side by side</h2>" in page.read_text()
    write_schedule(UNIT.model_copy(update={"events": UNIT.events[:-1]}), one)
    assert run(["report", str(one), "-o", str(page)]) == 1
    assert f"not valid: {one}; the page says why" in capsys.readouterr().err
    assert "missing_task" in page.read_text()


class Browser:
    """Drive a page in Chromium. Places are in pixels of the window."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, file: Path, page: str) -> None:
        """Open ``page`` with nothing in its console."""
        file.write_text(page)
        self.driver.get_log("browser")  # what an earlier page left
        self.driver.get(file.as_uri())
        self.settle()
        assert self.driver.get_log("browser") == []

    def worked_s(self) -> float:
        """Return the seconds of a processor that the page's thread has had since the page began."""
        self.driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        found = self.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return float(next(metric["value"] for metric in found if metric["name"] == "TaskDuration"))

    def settle(self) -> None:
        """Wait until what was asked for is drawn: two frames."""
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
        )

    def window(self, chart: str = "gantt-0") -> tuple[float, float]:
        """Return the first and last tick that a chart shows."""
        canvas = self.driver.find_element("id", chart)
        return float(canvas.get_dom_attribute("data-from")), float(canvas.get_dom_attribute("data-to"))

    def press(self, *keys: str) -> None:
        """Type keys, each drawn before the next."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)
            self.settle()

    def click(self, what: str) -> None:
        """Press a button of the bar."""
        self.driver.find_element("css selector", f"[data-do={what}]").click()
        self.settle()

    def point(self, stage: int, tick: float, chart: str = "gantt-0") -> Any:
        """Move the mouse to a stage and a tick of a chart, and return the chain of actions to go on with."""
        from selenium.webdriver.common.action_chains import ActionChains

        canvas = self.driver.find_element("id", chart)
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
        left, right, row = (float(canvas.get_dom_attribute(f"data-{name}")) for name in ("left", "right", "row"))
        begin, end = self.window(chart)
        x = left + (tick - begin) * (canvas.size["width"] - left - right) / (end - begin)
        y = (stage + 0.5) * row
        chain = ActionChains(self.driver, duration=50)
        return chain.move_to_element_with_offset(
            canvas, round(x - canvas.size["width"] / 2), round(y - canvas.size["height"] / 2)
        )

    def tip(self) -> str:
        """Return the text of the hover."""
        self.settle()
        return str(self.driver.find_element("id", "tip").text)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Start one Chromium for all tests."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER or ""
    for flag in ("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync",
                 "disable-background-networking", "disable-component-update", "window-size=1400,1000",
                 f"user-data-dir={tmp_path_factory.mktemp('chromium')}"):  # fmt: skip
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield Browser(driver)
    driver.quit()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Browser]:
    """The page of two schedules, shown from 0 to 33; whatever a test does with it, the console shows no error."""
    browser.open(tmp_path / "page.html", page_of(UNIT, FUSED))
    assert browser.window() == (0, 33)
    yield browser
    assert [entry for entry in browser.driver.get_log("browser") if entry["level"] == "SEVERE"] == []


@needs_browser
def test_hover_tells_id_times_and_wait(opened: Browser) -> None:
    """B0 of stage 0 runs from 7 to 8 after it waited from 4 for B0 of stage 1; before it, the stage was idle."""
    opened.point(0, 7.5).perform()
    told = opened.tip()
    assert told.startswith("it0/s0/v0/mb0/B gradient of the input\n7 to 8, 1 tick\n")
    assert "waited: idle 4 to 7, 3 ticks, dependency: its input was not computed yet; for it0/s1/v1/mb0/B" in told
    opened.point(0, 5.5).perform()
    assert "stage 0\nidle 4 to 7, 3 ticks" in opened.tip()
    opened.point(1, 1.5, "gantt-1").perform()
    assert "it0/s1/v1/mb0/F" in opened.tip()


@needs_browser
def test_hover_tells_what_memory_holds(opened: Browser) -> None:
    """At 2.5 stage 0 has started F0, F1, F2 and given nothing back: 3 of 6."""
    opened.point(0, 2.5, "memory-0").perform()
    told = opened.tip()
    assert "live 3 of 6 live activations" in told
    assert "v0/mb0: 1, v0/mb1: 1, v0/mb2: 1" in told


@needs_browser
def test_buttons_zoom_and_pan_all_charts(opened: Browser) -> None:
    """In: 33 / 1.5 = 22 ticks around the middle; later: a quarter of them, but not past the end; all: everything."""
    opened.click("in")
    for chart in ("gantt-0", "memory-0", "gantt-1", "memory-1"):
        assert opened.window(chart) == pytest.approx((5.5, 27.5))
    opened.click("right")
    assert opened.window() == pytest.approx((11, 33))
    opened.click("left")
    assert opened.window() == pytest.approx((5.5, 27.5))
    opened.click("out")
    assert opened.window() == (0, 33)
    opened.click("in")
    opened.click("all")
    assert opened.window() == (0, 33)


@needs_browser
def test_wheel_zooms_where_the_pointer_is(opened: Browser) -> None:
    """The tick below the pointer stays there while the window shrinks."""
    from selenium.webdriver.common.action_chains import ScrollOrigin

    canvas = opened.driver.find_element("id", "gantt-0")
    opened.point(1, 11).perform()
    offset = round((1.5 * 28) - canvas.size["height"] / 2)
    box = (
        canvas.size["width"],
        float(canvas.get_dom_attribute("data-left")),
        float(canvas.get_dom_attribute("data-right")),
    )
    x = round(box[1] + 11 * (box[0] - box[1] - box[2]) / 33 - box[0] / 2)
    opened.point(1, 11).scroll_from_origin(ScrollOrigin.from_element(canvas, x, offset), 0, -100).perform()
    opened.settle()
    begin, end = opened.window()
    assert end - begin < 30
    assert (11 - begin) / (end - begin) == pytest.approx(1 / 3, abs=0.01)


@needs_browser
def test_drag_pans(opened: Browser) -> None:
    """The dragged tick stays below the pointer: from tick 20 to tick 15 moves the window by 5."""
    opened.click("in")
    canvas = opened.driver.find_element("id", "gantt-0")
    left, right = (float(canvas.get_dom_attribute(f"data-{name}")) for name in ("left", "right"))
    pixels = round(5 * (canvas.size["width"] - left - right) / 22)
    opened.point(1, 20).click_and_hold().move_by_offset(-pixels, 0).release().perform()
    opened.settle()
    assert opened.window() == pytest.approx((10.5, 32.5), abs=0.1)


@needs_browser
def test_keys(opened: Browser) -> None:
    """Tab comes to the chart, which shows its focus; keys zoom, pan, go from op to op, and leave."""
    from selenium.webdriver.common.keys import Keys

    driver = opened.driver
    for _ in range(12):
        opened.press(Keys.TAB)
        if driver.switch_to.active_element.get_dom_attribute("id") == "gantt-0":
            break
    focused = driver.switch_to.active_element
    assert focused.get_dom_attribute("id") == "gantt-0"
    assert focused.value_of_css_property("outline-style") == "solid"
    opened.press("+")
    assert opened.window() == pytest.approx((5.5, 27.5))
    opened.press(Keys.ARROW_LEFT)
    assert opened.window() == pytest.approx((2.2, 24.2))
    opened.press("0")
    opened.press("n", "n")
    assert driver.find_element("id", "said").get_property("textContent").startswith("it0/s0/v0/mb1/F")
    opened.press(Keys.ARROW_DOWN)
    assert "it0/s1/v1/mb0/F" in opened.tip()
    opened.press("p")
    assert "it0/s1/v1/mb0/F" in opened.tip()
    opened.press(Keys.ESCAPE)
    assert opened.tip() == ""


@needs_browser
def test_critical_path_and_theme(opened: Browser) -> None:
    """Pressed, the button says so and ops off the path fade; the theme changes the page's own colours."""
    driver = opened.driver
    before = pixel(opened, 0, 1.5)
    opened.click("path")
    assert driver.find_element("css selector", "[data-do=path]").get_dom_attribute("aria-pressed") == "true"
    assert pixel(opened, 0, 1.5) != before
    background = driver.find_element("tag name", "body").value_of_css_property("background-color")
    opened.click("theme")
    assert driver.find_element("tag name", "body").value_of_css_property("background-color") != background
    opened.press("c", "t")
    assert pixel(opened, 0, 1.5) == before


@needs_browser
def test_print_is_light_and_without_buttons(opened: Browser) -> None:
    """Paper is white with any theme. Afterwards the theme is what it was."""
    driver = opened.driver
    background = "return getComputedStyle(document.body).backgroundColor"
    driver.execute_script("document.documentElement.dataset.theme = 'dark'")
    dark = driver.execute_script(background)
    driver.execute_script("dispatchEvent(new Event('beforeprint'))")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert driver.execute_script(background) == "rgb(255, 255, 255)" != dark
    assert not driver.find_element("css selector", ".tools").is_displayed()
    assert driver.find_element("id", "gantt-0").is_displayed()
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    driver.execute_script("dispatchEvent(new Event('afterprint'))")
    assert driver.execute_script(background) == dark


def pixel(browser: Browser, stage: int, tick: float) -> list[int]:
    """Return the colour of the Gantt chart at a stage and tick, near the upper edge of the op."""
    script = """
        const [stage, tick] = arguments, canvas = document.getElementById("gantt-0"), d = canvas.dataset;
        const width = canvas.clientWidth - d.left - d.right, sharp = canvas.width / canvas.clientWidth;
        const x = Number(d.left) + (tick - d.from) * width / (d.to - d.from), y = stage * d.row + 5;
        return [...canvas.getContext("2d").getImageData(Math.round(x * sharp), Math.round(y * sharp), 1, 1).data]"""
    return list(browser.driver.execute_script(script, stage, tick))


@needs_browser
def test_schedule_that_breaks_every_rule_opens_too(browser: Browser, tmp_path: Path) -> None:
    """Stage 0 without ops, ops on each other, an optimizer step, and one on a stage that is not there: none matters."""
    instance = Instance.uniform(stages=3, microbatches=2, barrier="post_validation")
    ops = [
        ("F", 1, 1, 0, 0, 3),
        ("F", 1, 1, 1, 1, 2),
        ("F", 2, 2, 0, 4, 4),
        ("B", 2, 9, 7, 5, 6),
        ("O", 2, None, None, 7, 9),
    ]
    events = tuple(Event(Kind(k), s, v, j, start, end) for k, s, v, j, start, end in [*ops, ("F", 8, 8, 0, 0, 50)])
    broken = Schedule(instance=instance, provenance=UNIT.provenance, events=events)
    browser.open(tmp_path / "page.html", page_of(broken))
    assert browser.window() == (0, 9)
    browser.point(2, 8).perform()
    assert browser.tip().startswith("it0/s2/O optimizer")
    browser.driver.find_element("id", "gantt-0").click()
    browser.press("n", "\ue013", "\ue015", "n", "c")  # arrows up to stage 0, which has no op, and down
    assert [entry for entry in browser.driver.get_log("browser") if entry["level"] == "SEVERE"] == []


@needs_browser
def test_rows_beside_compute_tell_what_they_hold(browser: Browser, tmp_path: Path) -> None:
    """1F1B over links of one tick: F0 ends at 1 and is on its way to stage 1 until 2; then that link is free."""
    instance = Instance.model_validate(
        {"stages": 2, "microbatches": 1, "forward_ticks": 1, "backward_ticks": 1, "weight_ticks": 1, "comm_ticks": 1}
        | {"communication": "link"}
    )
    browser.open(tmp_path / "page.html", page_of(HEURISTICS["1f1b-split"](instance)))
    browser.point(1, 1.5).perform()
    assert (
        browser.tip()
        == "it0/s0/v0/mb0/SEND_F activation on its way\n1 to 2, 1 tick\nstage 0, to 1\non the critical path"
    )
    browser.point(1, 3.5).perform()
    assert browser.tip() == "stage 0, to 1\nfree"
    browser.point(2, 2.5).perform()
    assert browser.tip().startswith("it0/s1/v1/mb0/F")


@needs_browser
def test_bug_an_op_hidden_below_another(browser: Browser, tmp_path: Path) -> None:
    """F1 and BW0 as one op from 2 to 6: the upper half is F1, the lower BW0, each told and walked to; BW0 hid F1."""
    fields = {"stages": 1, "microbatches": 2, "forward_ticks": 2, "fused_backward_ticks": 3, "overlapped_ticks": 4}
    ops = [("F", 0, 0, 2), ("F", 1, 2, 6), ("BW", 0, 2, 6), ("BW", 1, 6, 9)]
    events = tuple(Event(Kind(kind), 0, 0, j, start, end) for kind, j, start, end in ops)
    paired = Schedule(instance=Instance.model_validate(fields), provenance=UNIT.provenance, events=events)
    browser.open(tmp_path / "page.html", page_of(paired))
    row = float(browser.driver.find_element("id", "gantt-0").get_dom_attribute("data-row"))
    for share, op, other in ((-0.25, "mb1/F", "mb0/BW"), (0.25, "mb0/BW", "mb1/F")):
        browser.point(0 + share, 4).perform()
        told = browser.tip()
        assert told.startswith(f"it0/s0/v0/{op} ")
        assert f"one op with it0/s0/v0/{other}" in told
        assert "followed it0/s0/v0/mb0/F at once" in told
    assert row >= 30
    assert pixel(browser, 0, 5.5) != pixel(browser, 0.5, 5.5)


@needs_browser
def test_ledger_table_follows_stage_and_window(opened: Browser) -> None:
    """Stage 0, ticks 5.5 to 27.5: F4 to F7 come, 8 W give back; B gives nothing back, and has no line."""
    opened.click("in")
    driver = opened.driver
    driver.find_element("css selector", "#ledger-0 summary").click()
    opened.settle()
    rows = [row.text for row in driver.find_elements("css selector", "#ledger-0 tbody tr")]
    assert len(rows) == 4 + 8
    assert sum("/F +1 " in row for row in rows) == 4
    assert sum("/W \N{MINUS SIGN}1 " in row for row in rows) == 8
    assert rows[-1].endswith("/W \N{MINUS SIGN}1 0")


@needs_browser
def test_twenty_thousand_events(browser: Browser, tmp_path: Path) -> None:
    """p=8, m=834: 3 x 8 x 834 = 20,016 ops; opened with 3 s of work, drawn anew with half a second of it."""
    schedule = HEURISTICS["1f1b-split"](Instance.uniform(stages=8, microbatches=834, memory_cap=8))
    assert len(schedule.events) == 20_016
    page = page_of(schedule)
    assert len(page) < 3_000_000
    browser.open(tmp_path / "page.html", page)
    opened_s = browser.worked_s()
    assert 0 < opened_s < 3
    browser.driver.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert 0 < browser.worked_s() - opened_s < 0.5
    browser.driver.execute_script("dispatchEvent(new Event('afterprint'))")
    assert len(browser.driver.find_elements("css selector", "*")) < 500
    browser.point(3, 1000.5).perform()
    assert "it0/s3/v3/" in browser.tip()


@needs_browser
@pytest.mark.parametrize("stages", [4, 8, 32])
@pytest.mark.parametrize("width", [480, 1400])
def test_nothing_is_cut_off(browser: Browser, tmp_path: Path, stages: int, width: int) -> None:
    """At any size, the page is not wider than the window, and no two texts of the page lie on each other."""
    driver = browser.driver
    driver.set_window_size(width, 1000)
    try:
        schedule = HEURISTICS["zb-h1"](Instance.uniform(stages=stages, microbatches=2 * stages, memory_cap=stages))
        browser.open(tmp_path / "page.html", page_of(schedule, schedule))
        assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        assert driver.execute_script(OVERLAPS) == []
    finally:
        driver.set_window_size(1400, 1000)


OVERLAPS = """
    const kinds = "main h1, main h2, main h3, dt, dd, td, th, li, summary, main p, canvas";
    const texts = [...document.querySelectorAll(kinds)]
      .filter((e) => e.offsetParent && !e.closest("details:not([open]) > :not(summary)"));
    const boxes = texts.map((e) => [e, e.getBoundingClientRect()]);
    const found = [];
    boxes.forEach(([a, one], i) => boxes.slice(i + 1, i + 40).forEach(([b, two]) => {
      const across = Math.min(one.right, two.right) - Math.max(one.left, two.left);
      const down = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
      if (across > 1 && down > 1 && !a.contains(b) && !b.contains(a)) found.push([a.textContent, b.textContent]);
    }));
    return found"""


def test_exact_amounts_are_readable() -> None:
    """A third of an activation a virtual stage: the note beside the curve stays short."""
    made = HEURISTICS["interleaved"](
        Instance.uniform(stages=4, microbatches=8, placement="interleaved", virtual=3, fused_backward_ticks=2)
    )
    notes = data_of(page_of(made))["schedules"][0]["memory"]["notes"]
    assert notes[1] == "peak 13/3"
    assert Fraction("13/3") == max(  # by the events: F starts less BW ends
        sum((Fraction(1, 3) for e in made.events if e.stage == 1 and live(e, t)), Fraction(0)) - gone(made, t)
        for t in range(81)
    )


def live(event: Event, time: int) -> bool:
    """Tell whether an event is an F that has started."""
    return event.kind.value == "F" and event.start <= time


def gone(schedule: Schedule, time: int) -> Fraction:
    """Return the memory that the ended BWs of stage 1 gave back."""
    return sum(
        (Fraction(1, 3) for e in schedule.events if e.stage == 1 and e.kind.value == "BW" and e.end <= time),
        Fraction(0),
    )
