"""The built-in variables of texts in workflow files, and the source that wins for a name.

``VARIABLES`` is the table of the built-in variables. Other names come from the keys of the workflow file, the
user-wide variables, the inputs and outputs of nodes, the routing categories and ``messages``; ``Values.find`` decides
which source wins. A value is computed only if its name occurs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from Middleware.models.messages import Message, without_all_images
from Middleware.services.timestamp_service import TimestampService
from Middleware.utilities import config_utils
from Middleware.utilities import prompt_extraction_utils as extraction
from Middleware.utilities.answers.tool_calls import calls_among
from Middleware.utilities.config.keys.node import NODE
from Middleware.utilities.datetime_utils import month_name, pretty_date, time_12h, weekday_name
from Middleware.utilities.prompt_template_utils import flatten_messages, wrap_system
from Middleware.utilities.templates.substitution import UnknownVariableError
from Middleware.utilities.text_utils import restore_braces_in_data
from Middleware.workflows.models.execution_context import STAND_IN, ExecutionContext

CATEGORY_VARIABLES = (
    "category_list",
    "category_descriptions",
    "category_colon_descriptions",
    "category_colon_descriptions_newline_bulletpoint",
    "categoriesSeparatedByOr",
    "categoryNameBulletpoints",
)
_COUNTS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "ten": 10, "twenty": 20}


@dataclass(frozen=True)
class VariableSpec:
    """One built-in variable. If it is ``overridable``, a key of the workflow file with the same name hides it."""

    compute: Callable[[Values], str]
    overridable: bool = False


class Values:
    """The values that one substitution sees."""

    def __init__(self, context: ExecutionContext) -> None:
        self.context = context
        # The routing variables exist in a categorization run only.
        self._categories = context.run.category_variables if context.run is not None else {}
        self._memory: dict[str, tuple[Any, bool]] = {}

    def find_text(self, name: str) -> tuple[Any, bool]:
        """Return the value for plain substitution, and whether it comes from the configuration."""
        found = self._memory.get(name)
        if found is None:
            value, from_config = self.find(name)
            found = self._memory[name] = (value if isinstance(value, str) else readable(value), from_config)
        return found

    def for_jinja(self, names: Iterable[str]) -> dict[str, object]:
        """Return the values of those names that exist."""
        values = {}
        for name in names:
            # Copies with real braces: a template can neither change shared data nor see sentinels.
            try:
                values[name] = restore_braces_in_data(self.find(name)[0])
            except UnknownVariableError:
                continue
        return values

    def find(self, name: str) -> tuple[Any, bool]:
        """Return the value from the strongest source that knows ``name``. Raises UnknownVariableError."""
        context = self.context
        if name == "messages":
            return context.messages if context.messages is not None else [], False
        if name in self._categories:
            return self._categories[name], True
        if name in context.agent_inputs:
            return context.agent_inputs[name], False
        if name in context.agent_outputs:
            return context.agent_outputs[name], False
        # Keys of the file come between the built-in variables that they must not hide and those that they may.
        builtin = VARIABLES.get(name)
        if builtin is not None and not builtin.overridable:
            return builtin.compute(self), False
        if name != "nodes" and name in context.workflow_config:
            return context.workflow_config[name], True
        if builtin is not None:
            return builtin.compute(self), True
        return _user_wide(name), True

    def names(self) -> list[str]:
        """Return all names that ``find`` knows."""
        context = self.context
        sources = (
            VARIABLES,
            context.workflow_config,
            self._categories,
            context.agent_inputs,
            context.agent_outputs,
            config_utils.user_wide_variables(),
        )
        return [*dict.fromkeys(str(name) for source in sources for name in source if name != "nodes"), "messages"]

    # --- inputs of the table ---

    @property
    def node(self) -> Mapping[str, object]:
        return self.context.config

    @property
    def chat(self) -> bool:
        """Return whether the node's endpoint takes message lists, as a node without an endpoint is assumed to do."""
        handler = self.context.llm_handler
        return handler is None or handler.takes_message_collection

    @property
    def clock(self) -> datetime:
        # Read once per node, so that two of its texts cannot disagree.
        if self.context.clock is None:
            self.context.clock = datetime.now()
        return self.context.clock

    def number(self, key: str) -> int:
        value = NODE.value(self.node, key)
        # A text whose placeholder became no number is still a text here.
        return int(value if isinstance(value, (int, float)) else NODE[key].default)

    def window(
        self,
        templated: bool,
        clamp: extraction.ContextClamp,
        count: int | None = None,
        limit: int | None = None,
        floor: int = 1,
    ) -> list[Message]:
        """Return the newest messages that fit the clamp: ``count`` of them, or ``floor`` and all within ``limit``."""
        # The smallest number cannot exceed the clamp's budget, because it is taken from what fits.
        conversation, without_systems = self.messages(), templated or not self.chat
        messages = extraction.filter_systems(conversation, remove_all_systems_override=without_systems)
        chosen = messages if clamp.budget is None else extraction.newest_within(messages, clamp.budget, as_text=True)
        if count is not None:
            chosen = extraction.newest(chosen, count, as_text=True)
        if limit is not None:
            chosen = extraction.newest_within(chosen, limit, floor, as_text=True)
        if len(chosen) == len(messages):
            return chosen
        size = extraction.block_size(self.node, config_utils.user_setting("messageBlockSize"), count)
        return extraction.from_block(chosen, conversation, size, floor, without_systems)

    def messages(self) -> list[Message]:
        # Texts have nothing of the images of tool results.
        messages = without_all_images(self.context.messages or [])
        visible = NODE.flag(self.node, "includeToolCallsInConversation")
        return extraction.with_visible_tool_calls(messages) if visible else messages

    def clamp(self) -> extraction.ContextClamp:
        handler = self.context.llm_handler
        if handler is None or not handler.endpoint_config:
            return extraction.ContextClamp()
        user_flag = config_utils.user_setting("clampPromptToContextWindow")
        return extraction.context_clamp(self.node, handler.endpoint_config, user_flag, handler.max_tokens)

    def template(self, of_endpoint: bool) -> Mapping[str, object] | None:
        """Return the endpoint's or the user's prompt template; None where contents are inserted unchanged."""
        if self.chat:
            return None
        handler = self.context.llm_handler
        own = handler.prompt_template_file_name if handler is not None and of_endpoint else None
        return config_utils.load_prompt_template(own or config_utils.chat_template_name())

    def render(self, messages: list[Message], templated: bool) -> str:
        if templated:
            return flatten_messages(messages, self.template(of_endpoint=True))
        return extraction.join_contents(messages, _separator(), NODE.flag(self.node, "addUserAssistantTags"))


class AuthoredValues(Values):
    """The same with ``STAND_IN`` in place of what users, models and tools wrote."""

    def find(self, name: str) -> tuple[Any, bool]:
        value, from_config = super().find(name)
        if from_config:
            return value, True
        run = self.context.run
        inputs = enumerate(run.authored_inputs() if run is not None else (), 1)
        return next((text for number, text in inputs if name == f"agent{number}Input"), STAND_IN), False


# --- built-in variables ---


def _last(count: int | None, templated: bool) -> Callable[[Values], str]:
    """Compute the last messages: ``count`` of them, or as many as the node says."""

    def compute(values: Values) -> str:
        number = values.number("nMessagesToIncludeInVariable") if count is None else count
        return values.render(values.window(templated, values.clamp(), number), templated)

    return compute


def _within(limit_key: str, templated: bool, floor_key: str = "") -> Callable[[Values], str]:
    """Compute the newest messages within a number of tokens, but at least as many as ``floor_key`` says."""

    def compute(values: Values) -> str:
        clamp = values.clamp()
        limit, floor = clamp.limit(values.number(limit_key)), values.number(floor_key) if floor_key else 1
        return values.render(values.window(templated, clamp, limit=limit, floor=floor), templated)

    return compute


def _system_prompt(of_endpoint: bool) -> Callable[[Values], str]:
    def compute(values: Values) -> str:
        if not values.context.messages:
            return ""
        text = extraction.system_text(values.context.messages, leading_only=values.chat)
        return text if values.chat else wrap_system(text, values.template(of_endpoint))

    return compute


def _without_system(of_endpoint: bool) -> Callable[[Values], str]:
    def compute(values: Values) -> str:
        return flatten_messages(values.window(True, values.clamp()), values.template(of_endpoint))

    return compute


def _slices(templated: bool) -> dict[str, VariableSpec]:
    """Return the parts of the conversation: as plain text, or ``templated`` in the endpoint's prompt template."""
    start = "templated_user_prompt" if templated else "chat_user_prompt"
    computed = {f"{start}_last_{word}": _last(count, templated) for word, count in _COUNTS.items()}
    computed[f"{start}_n_messages"] = _last(None, templated)
    computed[f"{start}_estimated_token_limit"] = _within("estimatedTokensToIncludeInVariable", templated)
    computed[f"{start}_min_n_max_tokens"] = _within("maxEstimatedTokensInVariable", templated, "minMessagesInVariable")
    computed[f"{start}_without_system"] = _without_system(templated)
    computed[start.replace("user", "system")] = _system_prompt(templated)
    return {name: VariableSpec(compute) for name, compute in computed.items()}


def _date(write: Callable[[datetime], str]) -> VariableSpec:
    return VariableSpec(lambda values: write(values.clock), overridable=True)


VARIABLES: dict[str, VariableSpec] = {
    "todays_date_pretty": _date(pretty_date),
    "todays_date_iso": _date(lambda now: f"{now.year:04d}-{now.month:02d}-{now.day:02d}"),
    "YYYY_MM_DD": _date(lambda now: f"{now.year:04d}_{now.month:02d}_{now.day:02d}"),
    "current_time_12h": _date(time_12h),
    "current_time_24h": _date(lambda now: f"{now.hour:02d}:{now.minute:02d}"),
    "current_month_full": _date(month_name),
    "current_day_of_week": _date(weekday_name),
    "current_day_of_month": _date(lambda now: f"{now.day:02d}"),
    "Discussion_Id": VariableSpec(lambda values: values.context.discussion_id or ""),
    "time_context_summary": VariableSpec(lambda values: _time_context(values.context)),
    **_slices(templated=False),
    **_slices(templated=True),
}

# The names that texts of every workflow may use.
BUILT_IN_VARIABLES = frozenset({*VARIABLES, *CATEGORY_VARIABLES, "messages"})


# --- helpers ---


def _time_context(context: ExecutionContext) -> str:
    times = TimestampService(context.api_key_hash, context.encryption_key)
    return times.get_time_context_summary(context.discussion_id)


def _user_wide(name: str) -> object:
    table = config_utils.user_wide_variables()
    if name not in table:
        raise UnknownVariableError(name)
    return table[name]


def _separator() -> str:
    if not config_utils.user_flag("separateConversationInVariables"):
        return "\n"
    separator = config_utils.user_setting("conversationSeparationDelimiter")
    return separator if isinstance(separator, str) else "\n"


def readable(value: object) -> object:
    """Return the text of the result of a call that asked for tools; other values unchanged."""
    if not (isinstance(value, dict) and value.get("tool_calls") and "finish_reason" in value):
        return value
    return _ToolAnswer(value)


class _ToolAnswer(dict[str, object]):
    """A tool-calling answer that reads as its text, or as a summary of its calls."""

    def __str__(self) -> str:
        return str(self.get("content") or "") or extraction.tool_call_summary(calls_among(self.get("tool_calls")))

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)
