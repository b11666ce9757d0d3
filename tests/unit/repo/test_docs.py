"""The documents agree with the code, with what hosts read and with what commands print."""

import ast
import json
import re
import subprocess
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest
import yaml

from dropbatch import __version__
from dropbatch.core.formats.base import BatchFacts, Outcome
from dropbatch.core.formats.table import Form, file_names, reader_of, writer_of
from dropbatch.core.names import job_id
from dropbatch.core.options import OPTIONS
from dropbatch.core.read.rows import read_rows
from local.template import template
from shared.pacing.waits import IMPORTANCE
from tests.support.converted import target_of
from tests.support.shipped import ROOT, SHIPPED
from tools import docs
from tools.plan import dollars

PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "bench/*.md", "simulation/*.md", "local/*/*.md")
    for path in ROOT.glob(pattern)
)
FOLDERS = {
    *("functions", "shared", "dropbatch", "local", "simulation", "tests", "bench"),
    *("docs", "examples", "tools", "worker"),
}
OTHER_CODES = {"Wait"}
"""Classes whose `code` is no error of a record or an upload: what a job waits for has a table."""


def anchors(page):
    """The anchors that a host makes of a page's headings."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def table(page, name):
    """Rows of the table between two comments, as lists of cells."""
    (text,) = re.findall(
        rf"<!-- {name} -->\n(.*?)<!-- end of {name} -->", page.read_text("utf-8"), re.DOTALL
    )
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    assert rows, f"{page} has no table {name}"
    return rows


def codes_in(name):
    page = ROOT / "docs/results.md"
    return [row[0].strip("`") for row in table(page, f"codes of {name}")]


@cache
def nodes_of(path):
    return list(ast.walk(ast.parse(path.read_text("utf-8"))))


@cache
def names_in(path):
    """Names of functions, classes, methods and constants that a module defines."""
    tree = ast.parse(path.read_text("utf-8"))
    assigned = [one for one in tree.body if isinstance(one, ast.Assign | ast.AnnAssign)]
    targets = [target for one in assigned for target in ast.walk(one)]
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    return names | {getattr(node, "name", "") for node in ast.walk(tree)}


def choices(node):
    """The string constants that an expression may come to."""
    if isinstance(node, ast.IfExp):
        return choices(node.body) | choices(node.orelse)
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def code_argument(node):
    """The place of a class's argument `code`, or None, and the defaults of its `__init__`."""
    init = next((one for one in node.body if getattr(one, "name", "") == "__init__"), None)
    if init is None:
        fields = [one.target.id for one in node.body if isinstance(one, ast.AnnAssign)]
        return fields.index("code") if "code" in fields else None, []
    arguments = [one.arg for one in init.args.args[1:]]
    return arguments.index("code") if "code" in arguments else None, init.args.defaults


@cache
def codes_in_code():
    """Codes of records and uploads: each `code`, assigned or passed by name or to a class."""
    nodes = [node for path in SHIPPED for node in nodes_of(path)]
    classes = {node.name: code_argument(node) for node in nodes if isinstance(node, ast.ClassDef)}
    positions = {
        name: place
        for name, (place, _) in classes.items()
        if place is not None and name not in OTHER_CODES
    }
    given = [one for name in positions for one in classes[name][1]]
    for node in nodes:
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            given += [word.value for word in node.keywords if word.arg == "code"]
            given += node.args[positions[name] :][:1] if name in positions else []
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            pairs = zip(getattr(node.targets[0], "elts", ()), node.value.elts, strict=False)
            given += [value for target, value in pairs if getattr(target, "id", "") == "code"]
    found = {one for value in given for one in choices(value)}
    return {code for code in found if re.fullmatch(r"[a-z][a-z0-9_]+", code)}


@cache
def words_in_code():
    """All string constants of the functions' code."""
    nodes = [node for path in SHIPPED for node in nodes_of(path)]
    return {node.value for node in nodes if isinstance(node, ast.Constant)}


def links_lead_somewhere(page, text):
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


def files_exist(_, text):
    for name in re.findall(r"`([\w./-]+)`", text):
        if name.partition("/")[0] in FOLDERS and "/" in name:
            assert (ROOT / name).exists(), name
        elif name.endswith((".py", ".md")):
            assert list(ROOT.glob(name)) or any(ROOT.glob(f"[a-z]*/**/{name}")), name


def functions_of_files_exist(_, text):
    for path, names in re.findall(r"`([\w./-]+\.py)`:((?:,? `\w+`)+)", text):
        assert set(re.findall(r"`(\w+)`", names)) <= names_in(ROOT / path), path


def modules_exist(_, text):
    dotted = r"`((?:functions|shared|dropbatch|local|bench|tests)(?:\.\w+){2,})`"
    for name in re.findall(dotted, text):
        *folders, last = name.split(".")
        is_module = ROOT.joinpath(*folders, f"{last}.py").exists()
        assert is_module or last in names_in(ROOT.joinpath(*folders).with_suffix(".py")), name


def targets_of_make_exist(_, text):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"(?:`|^|\$ )make ([a-z-]+)", text, re.MULTILINE)) <= {*targets}


def says_first_what_it_is_for(_, text):
    title, _, rest = text.partition("\n")
    assert title.startswith("# ")
    assert re.match(r"[A-Z`]", rest.strip())


@pytest.mark.parametrize(
    "check",
    [
        links_lead_somewhere,
        files_exist,
        functions_of_files_exist,
        modules_exist,
        targets_of_make_exist,
        says_first_what_it_is_for,
    ],
)
def test_pages_are_true(check, subtests):
    for page in PAGES:
        with subtests.test(page=str(page.relative_to(ROOT))):
            check(page, page.read_text("utf-8"))


def test_pages_are_short():
    words = {page: len(page.read_text("utf-8").split()) for page in PAGES}
    lines = (ROOT / "docs/architecture.md").read_text("utf-8").splitlines()
    assert words[ROOT / "README.md"] <= 700
    assert sum(len(line.split()) for line in lines if not line.startswith("|")) <= 1_200
    assert sum(words.values()) <= 30_000
    assert len(list((ROOT / "docs").iterdir())) <= 14


@pytest.mark.parametrize("name", docs.TABLES)
def test_tables_of_pages_are_those_of_the_code(name):
    """`make docs` writes them."""
    assert docs.page(name) == (ROOT / "docs" / name).read_text("utf-8")


def test_shown_costs_are_those_counted():
    counted = (ROOT / "bench" / "cost.md").read_text()
    idle, job = dollars()
    assert f"| **{idle[1:]}** |" in counted
    assert float(idle[1:]) <= 3.50
    figures = r"storage and work .* \*\*([\d.]+)\*\* .* \*\*([\d.]+)\*\*"
    ((polls, events),) = re.findall(figures, counted)
    assert job == f"${float(polls):.4f}"
    said = f"${float(events):.4f} with completion events"
    assert said in (ROOT / "docs" / "limits.md").read_text()
    assert max(float(polls), float(events)) <= 0.025
    resources = template()["Resources"].items()
    queues = [name for name, one in resources if one["Type"] == "AWS::SQS::Queue"]
    fed = [name for name in queues if not name.endswith("DeadLetterQueue")]
    assert f"each of the {len(fed)} queues" in counted


WRITTEN = [page for page in PAGES if "Written by `" in page.read_text("utf-8")]
"""Pages with figures that a command wrote."""
JUDGED = {"README.md": ("dropbatch/core/read", "functions", "shared/workers_ai")}
"""What a page in `bench` judges, if that is not the functions as a whole."""
MOST_COMMITS = 150
"""Changes of what a page judges after which it says nothing: the nightly run writes it sooner."""


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_figures_are_of_this_code(page):
    """By the time, not the commit: a rebase gives that another name."""
    stamped = r"Written by `[^`]+` at [0-9a-f]+, (\S+ \S+) UTC; do not edit"
    (stamp,) = re.findall(stamped, page.read_text("utf-8"))
    judged = JUDGED.get(page.name, ("functions", "shared", "template.yaml"))
    count = ("git", "rev-list", "--count", f"--since={stamp} +0000", "HEAD", "--", *judged)
    done = subprocess.run(count, cwd=ROOT, capture_output=True, text=True, check=False)

    if done.returncode:
        pytest.skip("This copy has no history.")
    assert int(done.stdout) <= MOST_COMMITS, f"{page.name} is of {stamp}: write it again"


def test_page_of_options_has_those_of_code():
    rows = table(ROOT / "docs" / "options.md", "options")

    assert [row[0].strip("`") for row in rows] == list(OPTIONS)
    headers = [f"x-amz-meta-{name.replace('_', '-')}" for name in OPTIONS]
    assert [row[1].strip("`") for row in rows] == headers


def test_codes_are_documented_and_no_others():
    documented = {*codes_in("records"), *codes_in("uploads")}
    assert codes_in_code() <= documented
    assert documented <= words_in_code()


def test_reasons_to_wait_are_documented():
    assert set(codes_in("waiting")) == set(IMPORTANCE)


def test_documented_log_lines_exist():
    text = (ROOT / "docs/operations.md").read_text()
    looked_for = set(re.findall(r"""(?:grep|-e|_LOGS) "([a-z][^"]+)""", text)) - {"Ticks"}
    code = "".join(path.read_text() for path in SHIPPED)

    assert len(looked_for) >= 8
    assert {phrase for phrase in looked_for if phrase not in code} == set()


def test_documented_key_policy_lets_events_through():
    """KMS gets no source account of EventBridge: with the condition, no mail arrives."""
    block = re.search(r"```json\n(\[.+?)```", (ROOT / "docs/security.md").read_text(), re.DOTALL)
    rules = json.loads(block[1])
    (rule,) = [one for one in rules if one["Principal"].get("Service") == "events.amazonaws.com"]
    assert rule["Action"] == ["kms:GenerateDataKey", "kms:Decrypt"]
    assert "Condition" not in rule


UPLOADED = datetime(2026, 11, 21, 20, 39, 32, tzinfo=UTC)


@pytest.mark.parametrize(
    "printed", ["2026-11-21T20:39:32+00:00", "2026-11-21T20:39:32.000Z"], ids=["cli-2", "cli-1"]
)
def test_waiting_finds_job_of_newest_upload_of_key(printed):
    page = (ROOT / "docs" / "results.md").read_text()
    (shown,) = re.findall(r"^AT=\$\(aws [^|]+\| (.+)\)$", page, re.MULTILINE)
    (prefix,) = re.findall(r"results/\$FILE/(\S+) \| grep manifest\.json$", page, re.MULTILINE)

    done = subprocess.run(
        ["sh", "-c", shown], input=printed + "\n", capture_output=True, text=True, check=True
    )

    folder = prefix.replace("${AT}", done.stdout.strip())
    upload = ("files", "inbox/july.jsonl", "v2", "etag")
    assert job_id(*upload, UPLOADED).startswith(folder)
    assert not job_id(*upload, UPLOADED.replace(second=31)).startswith(folder)


def test_workflow_runs_ci():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    (job,) = workflow["jobs"].values()

    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert workflow["permissions"] == {"contents": "read"}


def test_every_target_has_its_time_and_every_test_its_run():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):.*##", makefile, re.MULTILINE)) - {"help"}
    rows = re.findall(
        r"^\| (`make .*?`) \| .+ \| (.+) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
    told = [name for first, _ in rows for name in re.findall(r"make ([a-z-]+)", first)]
    run = (ROOT / ".ci/run").read_text() + (ROOT / ".github/workflows/nightly.yml").read_text()
    tests = {"lint", "test", "stack", "simulate", "test-slow", "test-faults", "mutants", "bench"}

    assert sorted(told) == sorted(targets)
    assert {name for name in tests if not re.search(rf'[ "]{name}\b', run)} == set()
    assert len(makefile.splitlines()) <= 140


def test_issue_forms_have_what_host_demands():
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        assert {"name", "description", "body"} <= form.keys()
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert all(field["attributes"]["label"] for field in fields)


def test_changelog_is_in_form_of_keep_changelog():
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)

    assert headings[0] == __version__
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", heading) for heading in headings)
    assert len(text.partition("## ")[2].splitlines()) <= 40
    allowed = {"Added", "Gone", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= allowed


PAGE = (Path(__file__).parents[3] / "docs" / "formats.md").read_text("utf-8")
MODEL = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
FACTS = BatchFacts("20261121T093000Z-5f3a9c1e", MODEL, "768f15b7", 1_795_253_400)
USAGE = {"prompt_tokens": 14, "completion_tokens": 6, "total_tokens": 20}


def shown(section, kind):
    """The examples of a section, as bytes."""
    _, _, text = PAGE.partition(f"\n## {section}\n")
    text = text.partition("\n## ")[0]
    return [one.encode() for one in re.findall(rf"```{kind}\n(.*?\n)```", text, re.DOTALL)]


def answer(text):
    return json.dumps({"response": text, "usage": USAGE}).encode()


def test_openais_examples_are_real():
    record, request, line, refused = shown("openai", "json")
    form, target = Form("openai"), target_of(MODEL)
    (converted,) = reader_of(form, target).convert([record.strip()])
    assert converted.request + b"\n" == request
    writer = writer_of(form, target)
    good = Outcome(0, b"null", record.strip(), answer("Good day, harbour."))
    assert writer.line(FACTS, good) == line
    bad = b'{"custom_id":"request-2","body":{"messages":[],"n":2}}'
    (fault,) = reader_of(form, target).convert([bad])
    failed = Outcome(1, b"null", bad, None, fault.code, f"Line 2: {fault.message}")
    assert writer.line(FACTS, failed) == refused


def test_bedrocks_examples_are_real():
    record, line = shown("bedrock", "json")
    writer = writer_of(Form("bedrock"), target_of(MODEL))
    good = Outcome(0, b"null", record.strip(), answer("Good day, harbour."))
    assert writer.line(FACTS, good) == line


def test_tables_examples_are_real():
    table, output = shown("csv and tsv", "csv")
    header, *rows = [row for window in read_rows([table], b",") for row in window.records]
    form = Form("csv", header)
    writer = writer_of(form, target_of(MODEL))
    answers = [answer("Good day, harbour."), answer("1 2 3")]
    lines = [
        writer.line(FACTS, Outcome(id_, b"null", row, given))
        for id_, (row, given) in enumerate(zip(rows, answers, strict=True))
    ]
    assert file_names(form, "inbox/a.csv").output_opening + b"".join(lines) == output
