"""The app behind nginx, as docs/serving.md configures it, and behind Caddy with deploy/Caddyfile: https, a path, a room."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import PATIENCE, Visiting, quiet, visiting
from tests.browser.serving import ROOT, launch, stop
from tests.browser.test_classroom import join, open_room

pytestmark = pytest.mark.browser
LOGIN = {"username": "class", "password": "secret"}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def running(command: list[str], port: int, **env: str) -> Iterator[None]:
    """Run a proxy until the block ends, from when it listens on."""
    process = subprocess.Popen(command, env=os.environ | env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", port)):
                    break
            assert process.poll() is None, command
            time.sleep(0.1)
        yield
    finally:
        stop(process)


def configuration(app: str, port: int, base: str, folder: Path) -> str:
    """The server block of docs/serving.md, with this machine's ports and files, below the path `base`."""
    [block] = re.findall(r"For nginx:\n\n```\n(.*?)```", (ROOT / "docs/serving.md").read_text("utf-8"), re.DOTALL)
    (folder / "login").write_text("{username}:{{PLAIN}}{password}\n".format(**LOGIN))
    (folder / "login").chmod(0o644)
    files = f"ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem"
    changes = {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl; {files}",
        "server_name xformer.school.example": "server_name localhost",
        "/etc/nginx/xformer.htpasswd": f"{folder}/login",
        "http://127.0.0.1:8501": app,
        "location = /": f"location = {base}/",
        "location / ": f"location {base}/ ",
        "Host $host": "Host $http_host",  # with the port, which is not 443 here
    }
    for old, new in changes.items():
        assert block.count(old) == 1, old
        block = block.replace(old, new)
    places = "".join(
        f"{kind}_temp_path {folder}/{kind}; " for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root; " if os.geteuid() == 0 else ""  # else its workers may not read the folder
    return (
        f"{user}pid {folder}/pid; daemon off; error_log stderr; events {{}} http {{ access_log off; {places} {block} }}"
    )


@pytest.fixture(params=["nginx", "caddy"])
def behind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of an app behind a proxy with https; behind nginx, below a path and a login."""
    name, port = request.param, free_port()
    if shutil.which(name) is None:
        pytest.skip(f"no {name} on the PATH: the app was NOT tested behind it")
    base = "/class" if name == "nginx" else ""
    options = {"XFORMER_HOSTS": "localhost", "STREAMLIT_SERVER_BASE_URL_PATH": base.strip("/")}
    server, app = launch(base=base, **options)
    try:
        if name == "caddy":
            place = {"HOST": f"https://localhost:{port}", "APP": app.removeprefix("http://")}
            home = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
            command = ["caddy", "run", "--adapter", "caddyfile", "--config", str(ROOT / "deploy/Caddyfile")]
            with running(command, port, **place, **home):
                yield f"https://localhost:{port}"
        else:
            subprocess.run(
                ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                 "-days", "1", "-subj", "/CN=localhost", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"],
                check=True, capture_output=True,
            )  # fmt: skip
            (tmp_path / "nginx.conf").write_text(configuration(app, port, base, tmp_path))
            with running(["nginx", "-p", str(tmp_path), "-e", "stderr", "-c", str(tmp_path / "nginx.conf")], port):
                yield f"https://localhost:{port}{base}"
    finally:
        stop(server)


@pytest.fixture
def guests(browser: Browser) -> Iterator[Visiting]:
    """Visitors with the login, who accept the certificate."""
    contexts = [browser.new_context(ignore_https_errors=True, http_credentials=LOGIN) for _ in range(2)]
    with visiting(browser, [context.new_page() for context in contexts]) as visit:
        yield visit
    for context in contexts:
        context.close()


def test_screens_websockets_and_rooms_work_behind_a_proxy(behind: str, guests: Visiting) -> None:
    lecturer = guests(behind, "")
    sockets: list[str] = []
    lecturer.page.on("websocket", lambda one: sockets.append(one.url))
    scripts: list[str | None] = []
    lecturer.page.on(
        "response", lambda one: scripts.append(one.headers.get("content-encoding")) if one.url.endswith(".js") else None
    )
    lecturer.open("/")
    expect(lecturer.page.locator(".st-key-scene canvas").first).to_be_visible()
    stream = f"{behind.replace('https', 'wss')}/_stcore/stream"
    assert sockets[:1] == [stream]
    assert {"gzip", "zstd"} & set(scripts)

    lecturer.page.locator('[data-testid="stTopNavLink"][href$="/attention"]').first.click()
    lecturer.page.wait_for_url(re.compile(re.escape(behind) + r"/attention\?"), timeout=PATIENCE)
    quiet(lecturer.page)
    refused = lecturer.page.request.get(f"{behind}/_stcore/metrics")
    assert refused.status == 403

    page, code = open_room(lambda *_: lecturer.open("/attention?model=reverse-small&layer=2"), behind)
    student = join(guests, behind, code)
    student.page.wait_for_function("window.xformerRoom?.page?.state.layer === 1")
    problems = page.problems + student.problems
    assert not [one for one in problems if "/favicon.ico" not in one]  # browsers ask for it outside the path
