"""A screen of the app with an additional toggle that changes one line of text, as the peer of its own toggles."""

import runpy
import sys
from pathlib import Path

import streamlit as st

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))


def screen() -> None:
    st.toggle("one line of text", key="yardstick")
    st.text(f"the toggle is {'on' if st.session_state['yardstick'] else 'off'}")
    runpy.run_path(str(ROOT / "pages" / st.query_params.get("screen", "attention") / "page.py"))


def main() -> None:
    from pages.server import startup

    st.set_page_config(layout="wide")
    st.html(ROOT / "pages/controls/page.css")
    startup.wait_until_loaded()

    from pages.compute import picture
    from pages.controls import embed
    from pages.state import link, screens

    navigation = st.navigation([st.Page(screen, title="screen", default=True)], position="hidden")
    link.begin("screen")
    picture.begin()
    embed.begin(screens.screens()["attention"])
    navigation.run()
    st.query_params["screen"] = "attention"
    link.finish()


main()
