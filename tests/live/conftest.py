"""The browser, and a running app, of the tests of the screens."""

from tests.browser.conftest import app, app_runs, browser, tabs, visit, visited

__all__ = ["app", "app_runs", "browser", "tabs", "visit", "visited"]
