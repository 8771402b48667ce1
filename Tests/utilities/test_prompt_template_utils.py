"""Operations on prompt templates."""

from Middleware.utilities import prompt_template_utils as p

TEMPLATE = {
    "promptTemplateSystemPrefix": "<S>",
    "promptTemplateSystemSuffix": "</S>",
    "promptTemplateUserPrefix": "<U>",
    "promptTemplateUserSuffix": "</U>",
    "promptTemplateAssistantPrefix": "<A>",
    "promptTemplateAssistantSuffix": "</A>",
    "promptTemplateEndToken": "<end>",
    "promptTemplateSystemmesPrefix": "<M>",
    "promptTemplateSystemmesSuffix": "</M>",
}


def messages(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


def test_flatten_leaves_only_a_final_assistant_open():
    talk = messages(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))
    assert p.flatten_messages(talk, TEMPLATE) == "<U>a</U><A>b</A><U>c</U><A>d"
    assert p.flatten_messages(talk[:3], TEMPLATE) == "<U>a</U><A>b</A><U>c</U>"
    assert p.flatten_messages(talk, None) == "abcd"


def test_roles_without_template_keys():
    talk = messages(("systemMes", "m"), ("tool", "t"))
    assert p.flatten_messages(talk, TEMPLATE) == "<M>m</M>t"
    assert p.flatten_messages(talk, {**TEMPLATE, "promptTemplateToolPrefix": "<T>"}) == "<M>m</M><T>t"


def test_wraps():
    assert p.wrap_user_turn("x", TEMPLATE) == "<U>x</U>"
    assert p.wrap_system("", TEMPLATE) == "<S></S>"
    assert p.wrap_open_assistant_turn("x", TEMPLATE) == "<A>x"
    assert p.add_generation_prompt("x", TEMPLATE) == "x<A><end>"
    for wrap in (p.wrap_user_turn, p.wrap_system, p.wrap_open_assistant_turn, p.add_generation_prompt):
        assert wrap("x", None) == "x"
        assert wrap("x", {}) == "x"


def test_markers_vanish():
    template = {"promptTemplateUserPrefix": "[Beg_User]", "promptTemplateSystemmesPrefix": "[Beg_SysMes]"}
    assert p.flatten_messages(messages(("user", "a[Beg_Sys]"), ("systemMes", "b")), template) == "ab"
    assert p.wrap_open_assistant_turn("x[Beg_Assistant]", None) == "x"


def test_null_values_and_contents_are_empty():
    assert p.flatten_messages([{"role": "user", "content": None}], {"promptTemplateUserPrefix": None}) == ""
