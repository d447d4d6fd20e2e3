"""Texts that a visitor may type and that Markdown or Streamlit would interpret."""

TYPED = (
    "$x^2$ and $$y$$",
    ":red[x] ::red-badge[x] :small[x] :blue-background[x]",
    ":material/delete: :smile: :+1: :streamlit:",
    "https://evil.example/a?b=c HTTPS://EVIL.EXAMPLE www.evil.example",
    "me@evil.example mailto:me@x.example xmpp:a@b.example x@y.z ftp://x.example",
    "*a* _b_ **c** ~~d~~ `e`",
    "[x](http://y.example) ![x](http://y.example/z.png) [[x]] [^1] [x]: y",
    "<b>x</b> &amp; &lt; &copy; <script>alert(1)</script>",
    "a -> b <- c -- d >= e <= f ~= g --- == ...",
    "# head",
    "- item",
    "1. item",
    "> quote",
    "| a | b |",
    "a\\b \\* {.c}",
    "     four spaces and one",
    "two\n\n    lines",
)
