"""The app: `python app.py` serves it; each visit waits until all is loaded, then hands over to the page that was asked for.

Streamlit runs this file for each visit; before that, the same file as a module says what the server is made of.
"""

import sys
from importlib import import_module
from pathlib import Path

from xformer.quick_imports import quick_imports

if "streamlit" not in sys.modules:  # the start of a server: Streamlit would take all of Plotly, to give it a theme
    with quick_imports("plotly"):
        import_module("streamlit")

import streamlit as st
from streamlit import runtime
from streamlit.runtime.scriptrunner import StopException

from pages.shared import loading

HERE = Path(__file__).parent


def main() -> None:
    st.set_page_config(page_title="xformer", page_icon=str(HERE / "pages/shared/icon.png"), layout="wide")
    st.html(HERE / "pages/shared/page.css")
    st.html(
        f"<script>{(HERE / 'pages/shared/history.js').read_text(encoding='utf-8')}</script>",
        unsafe_allow_javascript=True,
    )
    loading.wait()

    from pages.shared import frame, link, notebook, screens
    from pages.shared.picture import panel

    screen = st.navigation(screens.navigation())
    link.begin(screen.url_path)
    notebook.begin()
    frame.begin()
    there = screens.screens()

    def finish() -> None:
        link.finish()
        frame.offer(there[screen.url_path or next(iter(there))])
        loading.drawn.set()

    try:
        panel(screen.run)
    except StopException:  # the screen has said all that it has to say
        finish()
        raise
    finish()


def serve() -> None:
    """Start the server."""
    from streamlit.web import cli

    sys.argv = ["streamlit", "run", str(HERE / "app.py"), *sys.argv[1:]]
    cli.main()


if runtime.exists():
    main()
elif __name__ == "__main__":
    serve()
else:
    from streamlit.components.v2.component_manager import BidiComponentManager
    from streamlit.runtime.pages_manager import PagesManager

    from pages.shared.serving import guards
    from pages.shared.serving.at_once import send_at_once

    send_at_once()
    # The folder is called pages/, so Streamlit takes the first visitor for one of an old-style multipage app, in which
    # a deep link such as /attention does not exist, and says "Page not found" before app.py has run. It is not one.
    PagesManager.uses_pages_directory = False
    # It reads what every installed package says of itself, to find components: half a second, and ours are no packages.
    BidiComponentManager.discover_and_register_components = lambda *given, **how: None  # pyright: ignore
    app = st.App(HERE / "app.py", middleware=guards())
    loading.begin()
