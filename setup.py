"""What a wheel carries: the library, and in xformer/_app the app with its screens, settings, lessons and shipped models."""

from setuptools import find_packages, setup

setup(
    script_name="setup.py",  # which is no part of the app
    packages=[*find_packages(include=["xformer", "xformer.*"]), "xformer._app"],
    package_dir={"xformer._app": "."},  # app.py and what stands beside it, as a package of its own
    exclude_package_data={"xformer._app": ["checkpoints/characters/*"]},  # 3 MB, a third of a wheel
    package_data={
        "xformer": [
            "py.typed",
            "presets.toml",
            "doctor/faults/bugs.toml",
            "playlists/*.json",
            "widgets/**/*.js",
            "widgets/*/*.css",
        ],
        "xformer._app": [
            ".streamlit/config.toml",
            "checkpoints/*/card.json",
            "checkpoints/*/model.safetensors",
            "docs/lessons/*.md",
            *(f"pages/**/*.{suffix}" for suffix in ("py", "css", "js", "png", "toml", "scene")),
        ],
    },
)
