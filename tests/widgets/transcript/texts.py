"""Sample texts: one with every construct, and strategies that generate others."""

from hypothesis import strategies as st

EVERYTHING = """\
# Title
Some text **bold
more** text with a [link](https://example.org/a) and `code`

- one
  two
  - nested

    para in nested
- three

1. first

   ```python
   def f():
   \treturn "tab"
   ```
2. second

> quote
lazy
> - in quote

| left | mid | right |
|------|:---:|------:|
| 1 | 2 | 3 |
| long cell with words | **x** | y |

***
Under
===

~~~
fence ``` inside
~~~

    indented

עברית 中文字 e\u0301 👩\u200d🚀 \x1b[31mred\x07
last line"""

_FRAGMENTS = (
    "# ## - * + > ``` ~~~ | |-|-| |:-: === --- *** 1. 2) [a](b) ** _x_ ` \t     \\ <b> & "
    "word https://x.org/y. 中文 אב 👩\u200d🚀 \u202e \x1b[2J \x00 \x9b \r \u2028 \ud800".split(" ")
)
pieces = st.one_of(st.sampled_from([*_FRAGMENTS, "\n", "\n\n", " ", "    ", "python\n"]), st.text(max_size=6))
texts = st.lists(pieces, max_size=40).map("".join)
