"""The same as a user without privileges: user namespaces, files of other users and groups."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import textwrap
from pathlib import Path

import pytest

from postmortem.attach import launch
from postmortem.attach.sandbox import landlock

ROOT = Path(launch.__file__).parents[3]
SOMEBODY = 4321  # without a name; not nobody's number, which stands for all others in a user namespace
RERUN = textwrap.dedent("""
    import sys
    sys.dont_write_bytecode = True
    sys.path.insert(0, sys.argv[1])
    from pathlib import Path
    from postmortem.attach import launch
    session = launch.new_session()
    out = session / "out.txt"
    try:
        with out.open("w") as stdout:
            launched = launch.start(["sh", "-c", sys.argv[2]], {}, session=session, cwd=Path(sys.argv[3]),
                                    sandbox=sys.argv[4], stdout=stdout.fileno())
    except launch.CannotProtect as error:
        sys.exit(f"refused: {error}")
    launched.wait(timeout=20)
    launched.stop()
    print(launched.how)
    print(out.read_text(), end="")
    launched.remove()
    print("left:", *session.parent.iterdir())
""")


@pytest.fixture
def case():
    """Somebody's folder below one of root, with files of a group that somebody is in."""
    if os.geteuid() or not shutil.which("setpriv"):
        pytest.skip("takes root and setpriv to become somebody else")
    if subprocess.run(
        ["setpriv", "--reuid", str(SOMEBODY), "test", "-r", str(ROOT / "postmortem")], check=False
    ).returncode:
        pytest.skip("the package is not readable for other users")
    top = Path(tempfile.mkdtemp())
    top.chmod(0o755)
    folder = top / "of root" / "of somebody, here"
    folder.mkdir(parents=True)
    (folder / "home").mkdir()
    (folder / "log.txt").write_text("1\n")
    (folder / "group.txt").write_text("1\n")
    (folder / "shared").mkdir()
    (folder / "shared" / "deep.txt").write_text("1\n")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, SOMEBODY, SOMEBODY)
    for path in (folder / "group.txt", folder / "shared", folder / "shared" / "deep.txt"):
        os.chown(path, 0, 1234)
        path.chmod(0o775 if path.is_dir() else 0o664)
    yield folder
    shutil.rmtree(top)


BECOME = ["setpriv", "--reuid", str(SOMEBODY), "--regid", str(SOMEBODY), "--groups", "1234"]


def rerun(case: Path, script: str, sandbox: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*BECOME, "/usr/bin/python3", "-c", RERUN, str(ROOT), script, str(case), sandbox],
        env={"PATH": os.environ["PATH"], "HOME": str(case / "home")},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


def system_python() -> bool:
    code = "import sys; sys.exit(sys.version_info < (3, 11))"
    return (
        Path("/usr/bin/python3").exists()
        and not subprocess.run(["/usr/bin/python3", "-c", code], check=False).returncode
    )


pytestmark = pytest.mark.skipif(not system_python(), reason="no Python that another user may run")
SCRIPT = """
for f in log.txt group.txt shared/deep.txt; do echo 2 >> $f; cat $f; done
touch new shared/new "$HOME/new"; rm log.txt; id -u; ls
"""


def files(case: Path) -> dict[str, tuple]:
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_uid, path.read_bytes() if path.is_file() else None)
        for path in case.rglob("*")
        if ".cache" not in path.parts and path.name != "home"
    }


def overlays() -> bool:
    """Whether util-linux can do by hand what we do."""
    by_hand = "mkdir l u w; mount -t overlay o -o lowerdir=l,upperdir=u,workdir=w,userxattr l"
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        command = [*BECOME, "unshare", "-Urm", "sh", "-c", by_hand]
        done = subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0
        subprocess.run(["chmod", "-R", "u+rwx", folder], check=False)
        return done


@pytest.fixture
def overlay(case):
    if not overlays():
        pytest.skip("this kernel lets no user mount an overlay")


def test_writes_are_redirected_in_a_user_namespace(case, overlay):
    before = files(case)
    done = rerun(case, SCRIPT, "overlay")
    assert not done.stderr
    said = done.stdout.splitlines()
    assert said[0].startswith("writes go to an overlay over")
    assert said[1:7] == ["1", "2"] * 3
    assert said[7] == str(SOMEBODY)
    assert said[8:] == ["group.txt", "home", "new", "shared", "left:"]
    assert files(case) == before


def test_writes_are_denied_by_landlock(case):
    before = files(case)
    done = rerun(case, SCRIPT, "landlock")
    if not landlock.abi():
        pytest.skip("this kernel has no Landlock")
    assert "writing is denied" in done.stdout
    assert files(case) == before


def test_the_program_cannot_take_the_overlay_away(case, overlay):
    done = rerun(case, "umount . / /tmp 2>&1 || mount -t tmpfs t . 2>&1 || echo still there", "overlay")
    assert "still there" in done.stdout
