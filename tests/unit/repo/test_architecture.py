"""What imports what, how long modules are, and what of the code has one value or one reason."""

import ast
import inspect
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter

import pytest

from dropbatch.core.names import JobState
from shared.ledger import batches, jobs
from shared.models import BatchState
from tests.mutants.defects import all_mutants, reasons
from tests.simulation.worlds.judges import NEXT_JOB_STATES, NEXT_STATES
from tests.support.shipped import CORE, ROOT, SHIPPED

ROOMS = {
    "boto3": {"shared.bootstrap"},
    "botocore": {"shared.bootstrap", "shared.aws.client_errors", "shared.aws.object_store"},
    "httpx": {"shared.workers_ai.client"},
    "ctypes": {"functions.poll.running_sha256"},
    "_hashlib": {"functions.poll.running_sha256"},
    "backports": {"dropbatch.core.read.unpack"},
    "subprocess": set(),
    "pickle": set(),
    "json": set(),
    "asyncio": set(),
}
"""Who alone may import what; `json` because msgspec is what reads and writes JSON here."""

FLAT = tuple(f"dropbatch.core.{name}" for name in ("cost", "options"))
FORBIDDEN = {
    "": ("simulation", "tests", "local", "tools", "bench", "moto", "pytest"),
    "shared": ("functions",),
    "functions.submit": ("functions.poll",),
    "functions.poll": ("functions.submit",),
    "dropbatch": ("shared", "functions"),
    "dropbatch.core": (
        *("dropbatch.client", "dropbatch.cli", "dropbatch.serve", "dropbatch.errors", "boto3"),
    ),
    "dropbatch.client": ("dropbatch.cli", "dropbatch.serve"),
    "dropbatch.core.read": FLAT,
    "dropbatch.core.formats": (*FLAT, "dropbatch.core.plan", "dropbatch.core.read.cut"),
}
"""What no module of a package imports; the first row is for all."""

LIBRARY = sorted((ROOT / "dropbatch").rglob("*.py"))

PURE = (
    *("dropbatch.core", "shared.models"),
    *("functions.poll.join", "functions.poll.running_sha256"),
    *("shared.aws.attribute_values", "shared.aws.object_events"),
    *("shared.errors", "shared.settings", "shared.staged_batch"),
    "shared.workers_ai.results",
)
"""Packages and modules that know no service, no log and no clock."""

IMPURE = {
    *("boto3", "botocore", "httpx", "aws_lambda_powertools", "time", "os", "random", "tempfile"),
    *("shared.bootstrap", "shared.observability", "shared.workers_ai.client"),
    *(f"shared.aws.{name}" for name in ("dynamodb", "event_bus", "object_store", "queues")),
    *("shared.ledger", "shared.ledger.batches", "shared.ledger.due", "shared.ledger.jobs"),
    *("shared.pacing.budget", "shared.pacing.cadence", "shared.pacing.breaker"),
}


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def tree_of(path):
    return ast.parse(path.read_text("utf-8"))


def statements(block, *, types):
    """All statements; without those for types alone, of which nothing is imported at run time."""
    for node in block:
        if types or getattr(getattr(node, "test", None), "id", "") != "TYPE_CHECKING":
            yield node
            for part in ("body", "orelse", "handlers", "finalbody", "cases"):
                yield from statements(getattr(node, part, ()), types=types)


@cache
def imports_of(path, *, types=True):
    """Names of the modules that a file imports anywhere."""
    found = set()
    for node in statements(tree_of(path).body, types=types):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {node.module, *(inside if node.module in {"shared", "functions"} else ())}
    return frozenset(found)


def is_in(module, package):
    return module == package or module.startswith(f"{package}.") or not package


def breaches(rule, paths=SHIPPED):
    """What of each module breaks a rule; a rule is given the module's name and path."""
    found = {name_of(path): rule(name_of(path), path) for path in paths}
    return {name: what for name, what in found.items() if what}


def test_there_is_something_to_look_at():
    names = {name_of(path) for path in SHIPPED}
    assert names > set(PURE)
    assert {room for rooms in ROOMS.values() for room in rooms} < names


def test_package_knows_nothing_above_it(subtests):
    for package, forbidden in FORBIDDEN.items():
        with subtests.test(package):
            within = [path for path in {*SHIPPED, *LIBRARY} if is_in(name_of(path), package)]
            known = {(path, one) for path in within for one in imports_of(path)}
            assert [one for one in known if any(is_in(one[1], other) for other in forbidden)] == []


def test_simulator_knows_nothing_of_dropbatch():
    ours = ("dropbatch", "functions", "shared", "local", "tests", "tools", "bench")
    paths = sorted((ROOT / "simulation").rglob("*.py"))

    def rule(_, path):
        named = re.findall("(?i)dropbatch", path.read_text("utf-8"))
        return named + [one for one in imports_of(path) if one.partition(".")[0] in ours]

    assert len(paths) > 10
    assert breaches(rule, paths) == {}


def test_core_imports_only_itself_and_msgspec():
    def rule(_, path):
        others = [one for one in imports_of(path, types=False) if not is_in(one, "dropbatch.core")]
        known = {one.partition(".")[0] for one in others}
        return known - sys.stdlib_module_names - {"msgspec", "backports", "compression"}

    assert breaches(rule, CORE) == {}


def drawing():
    """The rooms of the drawing by their short names, its groups, and its arrows."""
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    (drawn,) = re.findall(r"```mermaid\nflowchart TD\n(.*?)```", page, re.DOTALL)
    paths = {
        name: re.split(r"<br>|\.py", label)[0]
        for name, label in re.findall(r'(\w+)\["([^"]+)"\]', drawn)
    }
    groups, group = {}, None
    for line in re.sub(r"\[[^]]*\]", "", drawn).splitlines():
        if line.strip() == "end" or line.startswith("  subgraph "):
            group = line.partition("subgraph ")[2]
        elif group:
            groups.setdefault(group, set()).update(re.findall(r"\w+", line))
    arrows = re.findall(r"(\w+)(?:\[[^]]*\])? --> (\w+)", drawn)
    rooms = {name: paths.get(name, name) for within in groups.values() for name in within}
    return rooms, groups, arrows


def test_rooms_are_drawn_as_they_are_imported():
    """Each arrow of the drawing is an import, and each import between rooms is an arrow."""
    rooms, groups, arrows = drawing()
    ends = {room: {room} for room in rooms} | groups
    folders = ("functions", "shared", "dropbatch", "tools", "local", "bench", "simulation")

    @cache
    def room_of(module):
        within = [name for name, path in rooms.items() if is_in(module, path.replace("/", "."))]
        return max(within, key=lambda name: len(rooms[name]), default=None)

    @cache
    def group_of(room, module):
        of_room = (group for group, within in groups.items() if room in within)
        return next(of_room, module.partition(".")[0])

    @cache
    def is_covered(arrow, room, module):
        inside = ends[arrow]
        return room in inside or (arrow in groups and group_of(room, module) == arrow)

    known = {
        (name_of(path), one)
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        for one in imports_of(path, types=False)
        if one.partition(".")[0] in folders
    }
    met, missing = {arrow: set() for arrow in arrows}, []
    for module, other in known:
        room, wanted = room_of(module), room_of(other)
        is_inside = group_of(room, module) == group_of(wanted, other)
        if room == wanted or (is_inside and None in (room, wanted)):
            continue
        from_here = [arrow for arrow in arrows if is_covered(arrow[0], room, module)]
        drawn = [arrow for arrow in from_here if is_covered(arrow[1], wanted, other)]
        missing += [] if drawn else [(module, other)]
        for arrow in drawn:
            met[arrow].add((room, wanted))

    assert missing == []
    assert [arrow for arrow, found in met.items() if not found] == []
    for arrow, found in met.items():  # What is drawn for a group holds for two of its rooms.
        for end, name in enumerate(arrow):
            assert name not in groups or len({pair[end] for pair in found}) > 1, arrow


def test_functions_and_shared_import_core_alone():
    def rule(name, path):
        known = imports_of(path, types=False)
        return not is_in(name, "dropbatch") and [
            one for one in known if is_in(one, "dropbatch") and not is_in(one, "dropbatch.core")
        ]

    assert breaches(rule) == {}


def test_library_is_imported_only_in_its_room(subtests):
    for library, rooms in ROOMS.items():
        importing = {
            name_of(path)
            for path in SHIPPED
            if any(is_in(module, library) for module in imports_of(path))
        }
        with subtests.test(library):
            assert importing <= rooms


def test_pure_modules_know_no_service():
    def rule(name, path):
        known = {name for one in imports_of(path, types=False) for name in (one, one.split(".")[0])}
        return any(is_in(name, one) for one in PURE) and known & IMPURE

    assert breaches(rule) == {}


def test_no_modules_import_each_other_in_circle():
    """Not at run time: what is imported for types alone may point back."""
    names = {name_of(path): path for path in {*SHIPPED, *LIBRARY}}
    behind = {name: imports_of(path, types=False) & names.keys() for name, path in names.items()}
    behind["dropbatch.client.job"] = {
        one for one in behind["dropbatch.client.job"] if not is_in(one, "dropbatch.client")
    }
    order = TopologicalSorter(behind)
    order.prepare()


@pytest.fixture
def written():
    """Each module that somebody wrote: the product, its tools and its tests."""
    folders = ("bench", "dropbatch", "functions", "local", "shared", "simulation", "tests", "tools")
    return [path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("*.py")]


def test_no_module_of_product_is_longer_than_450_lines(written):
    """Most longer ones do two things. Tests may be longer: they are read a case at a time."""
    product = [path for path in written if "tests" not in path.parts]
    lines = {path: len((ROOT / path).read_text("utf-8").splitlines()) for path in product}
    assert [path for path, number in lines.items() if number > 450] == []


def test_no_folder_has_more_than_24_modules(written):
    modules = Counter(str(path.parent) for path in written if path.name != "__init__.py")
    assert {folder: number for folder, number in modules.items() if number > 24} == {}


def test_environment_is_read_in_one_place():
    def rule(_, path):
        nodes = ast.walk(tree_of(path))
        names = {getattr(node, "attr", getattr(node, "id", "")) for node in nodes}
        return names & {"environ", "getenv", "environb"}

    assert set(breaches(rule)) == {"shared.bootstrap"}


def test_every_module_says_first_what_it_is():
    assert breaches(lambda _, path: not ast.get_docstring(tree_of(path))) == {}


@pytest.mark.parametrize("function", ["submit", "poll"])
def test_handler_decides_nothing(function):
    path = ROOT / "functions" / function / "handler.py"
    deciding = ("ledger", "aws.object_store", "pacing.budget", "workers_ai.client")
    assert len(path.read_text("utf-8").splitlines()) <= 160
    assert not {f"shared.{name}" for name in deciding} & imports_of(path)


def test_boto3_is_not_imported_when_module_is():
    top = ast.parse((ROOT / "shared" / "bootstrap.py").read_text("utf-8")).body
    names = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
    assert "boto3" not in names


def test_only_handlers_know_the_composition_root():
    product = [path for folder in ("functions", "shared") for path in (ROOT / folder).rglob("*.py")]
    knowing = [name_of(path) for path in product if "shared.bootstrap" in imports_of(path)]
    assert sorted(knowing) == ["functions.poll.handler", "functions.submit.handler"]


def constants(path):
    """The public constants that a module defines, each with the source of its value."""
    for node in [one for one in tree_of(path).body if isinstance(one, ast.Assign)]:
        names, values = node.targets[0], node.value
        several = isinstance(names, ast.Tuple) and isinstance(values, ast.Tuple)
        pairs = zip(names.elts, values.elts, strict=True) if several else [(names, values)]
        for name, value in pairs:
            is_public = isinstance(name, ast.Name) and name.id.isupper()
            if is_public and name.id[0] != "_" and not isinstance(value, ast.Dict):
                yield name.id, ast.unparse(value)


def test_constant_has_one_value():
    found = {}
    for path in SHIPPED:
        for name, value in constants(path):
            found.setdefault(name, {}).setdefault(value, str(path.relative_to(ROOT)))
    assert len(found) > 200
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_reasons_name_defects_that_exist():
    names = {one.name for one in all_mutants()}

    assert [one for one in reasons() if one not in names] == []


def test_zstd_is_from_standard_library_if_there():
    """Python 3.14 has `compression.zstd`, and the locks leave the backport out there."""
    program = """
import sys, types
from backports import zstd
sys.modules.pop("backports.zstd"), sys.modules.pop("backports")
sys.modules["compression"] = types.ModuleType("compression")
sys.modules["compression"].zstd = sys.modules["compression.zstd"] = zstd
class NoBackports:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "backports":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoBackports())
sys.version_info = (3, 14, 0, "final", 0)
from dropbatch.core.read import unpack
assert b"".join(unpack.decompress("zstd", iter([zstd.compress(b"text")]))) == b"text"
"""
    if sys.version_info >= (3, 14):
        program = """
from compression import zstd
from dropbatch.core.read import unpack
assert unpack.zstd_module() is zstd
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


MACHINES = {"job": (NEXT_JOB_STATES, JobState, jobs), "batch": (NEXT_STATES, BatchState, batches)}
NAMES = r"((?:`[a-z_]+`(?:, | or )?)+)"


def edges(name):
    """What the laws allow, without writes that leave the state as it is."""
    return {
        (was, to) for was, following in MACHINES[name][0].items() for to in following if was != to
    }


@pytest.fixture(params=MACHINES)
def name(request):
    return request.param


def test_laws_know_every_state(name):
    table, states, _ = MACHINES[name]

    assert table.keys() - {None} == set(states)


def test_diagram_draws_what_laws_allow(name):
    page = (ROOT / "docs/architecture.md").read_text()
    (drawn,) = re.findall(rf'state "{name}" as {name} {{\n(.*?)\n  }}', page, re.DOTALL)
    arrows = re.findall(r"(\S+) --> (\w+)", drawn)

    assert {(None if was == "[*]" else was, to) for was, to in arrows} == edges(name)
    assert len(arrows) == len(set(arrows))


def test_docstrings_of_ledger_say_what_laws_allow(name):
    text = inspect.getsource(MACHINES[name][2])
    said = {
        (was, to)
        for befores, afters in re.findall(rf"{NAMES}(?: back)? to {NAMES}", text)
        for was in re.findall(r"\w+", befores.replace(" or ", " "))
        for to in re.findall(r"\w+", afters.replace(" or ", " "))
    }

    assert said == {(was, to) for was, to in edges(name) if was is not None}


def test_page_explains_every_state(name):
    page = (ROOT / "docs/architecture.md").read_text()
    (row,) = re.findall(rf"^- \*state of a {name}\*: (.*)$", page, re.MULTILINE)

    assert sorted(re.findall(r"`(\w+)`", row)) == sorted(MACHINES[name][1])
