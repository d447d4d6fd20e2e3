"""The app. `python app.py` starts the server, which imports this file once and reruns it for every visit and click."""

import runpy
import sys
from pathlib import Path

import streamlit as st

from pages.controls import streamlit_compat
from pages.server import startup

ROOT = Path(__file__).parent


def main() -> None:
    """Draw the screen at the visitor's address."""
    icon = str(ROOT / "pages/controls/icon.png")
    st.set_page_config(page_icon=icon, layout="wide", initial_sidebar_state=300)
    st.html(ROOT / "pages/controls/page.css")
    scripts = [(ROOT / name).read_text("utf-8") for name in ("pages/state/history.js", "pages/controls/stage_view.js")]
    st.html(f"<script>{''.join(scripts)}</script>", unsafe_allow_javascript=True)
    startup.wait_until_loaded()

    from pages.classroom import follow, present, stage
    from pages.compute import picture
    from pages.compute.picture import panel
    from pages.controls import embed
    from pages.state import link, playlist, screens, session

    screen = st.navigation(screens.navigation(), position="top")
    session.publish = follow.publish
    link.begin(screen.url_path)
    picture.begin()
    all_screens = screens.screens()
    name = screen.url_path or next(iter(all_screens))
    st.set_page_config(page_title=f"{screen.title} · xformer")
    with embed.begin(all_screens[name]):
        present.menu()
    playlist.begin(name)
    try:
        if not stage.stage():
            panel(screen.run)
    except streamlit_compat.StopScript:  # `st.stop()`: the screen is complete
        link.finish()
        raise
    link.finish()
    follow.publish()


def serve() -> None:
    """Start the server with the options of `streamlit run`."""
    sys.argv = ["streamlit", "run", str(ROOT / "app.py"), *sys.argv[1:]]
    runpy.run_module("streamlit", run_name="__main__")


if streamlit_compat.is_server_running():
    main()
elif __name__ == "__main__":
    serve()
else:
    # Streamlit searches the source of this file for a call of `st.App`.
    app = st.App(ROOT / "app.py", routes=startup.routes(), middleware=startup.prepare())
