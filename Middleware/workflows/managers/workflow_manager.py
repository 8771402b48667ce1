"""Loads a workflow and starts runs."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Unpack

from Middleware.exceptions import ConfigValueError
from Middleware.models.llm_call import Observer
from Middleware.models.messages import Message
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext, current_node, current_request
from Middleware.services.cancellation_service import get_cancellation_service
from Middleware.services.llm_service import LlmHandlerService
from Middleware.services.memory.discussion_keys import discussion_keys
from Middleware.utilities import config_utils
from Middleware.utilities.discussions.discussion_id import extract_discussion_id, remove_discussion_id_tag
from Middleware.workflows.events import Listeners, default_listeners
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.handlers.registry import build_registry
from Middleware.workflows.managers.variable_table import CATEGORY_VARIABLES
from Middleware.workflows.managers.workflow_variable_manager import WorkflowVariableManager
from Middleware.workflows.models.execution_context import ChildOptions, ExecutionContext, RunRequest
from Middleware.workflows.processors.workflows_processor import WorkflowProcessor

logger = logging.getLogger(__name__)

# A workflow that calls itself, perhaps through others, would go on until Python's stack ends.
MAX_NESTING = 25


class _NamedRun(Protocol):
    def __call__(
        self, request_id: str, discussion_id: str | None, messages: list[Message], api_key: str | None = None
    ) -> Any: ...


def _named_by_user(key: str) -> _NamedRun:
    def run(request_id: str, discussion_id: str | None, messages: list[Message], api_key: str | None = None) -> Any:
        """Return the result of a workflow that the user's file names."""
        name = config_utils.user_name_setting(key)
        if not name:
            raise ConfigValueError(
                "the user's file names no workflow here", json_path=key, expected="a workflow's name"
            )
        return WorkflowManager.run_custom_workflow(name, request_id, discussion_id, messages, True, api_key=api_key)

    return run


class WorkflowManager:
    """Runs one workflow by name.

    Args:
        workflow_config_name: file name under the user's workflow folder, without ``.json``.
        workflow_user_folder_override: another folder under ``Workflows``.
        path_finder_func: name -> path of the file, in place of the usual search.
        calling_folder, calling_name: the parent, whose folders are searched last for a child.
        listeners: objects that receive the events of the run; None: the listeners of its request.
        category_variables, categories: the six routing variables of a categorization run; also accepted as keywords.
    """

    def __init__(
        self,
        workflow_config_name: str,
        *,
        workflow_user_folder_override: str | None = None,
        path_finder_func: Callable[[str], str] | None = None,
        calling_folder: str | None = None,
        calling_name: str | None = None,
        listeners: Sequence[object] | None = None,
        category_variables: Mapping[str, Any] | None = None,
        parent: WorkflowManager | None = None,
        **categories: Any,
    ) -> None:
        unknown = categories.keys() - set(CATEGORY_VARIABLES)
        if unknown:
            raise TypeError(f"WorkflowManager takes no keyword argument '{min(unknown)}'")
        self.workflow_config_name = workflow_config_name
        self.folder_override = workflow_user_folder_override
        self.path_finder_func = path_finder_func
        self.calling_folder = calling_folder
        self.calling_name = calling_name
        self.category_variables = {**(category_variables or {}), **categories}
        self.listeners: Observer | None = None if listeners is None else Listeners(listeners)
        if parent:
            self.listeners = parent.listeners
        self.llm_handler_service: LlmHandlerService = parent.llm_handler_service if parent else LlmHandlerService()
        self.variables = WorkflowVariableManager()
        # Handlers hold no state of a request, so all requests share them. A copy: a script may exchange one.
        self.node_handlers: dict[str, BaseHandler] = (
            parent.node_handlers if parent else dict(process().one(_shared_handlers))
        )

    # -- entry points --------------------------------------------------------------------------------------------
    @staticmethod
    def run_custom_workflow(
        workflow_name: str,
        request_id: str,
        discussion_id: str | None,
        messages: list[Message],
        non_responder: bool | None = None,
        is_streaming: bool = False,
        first_node_system_prompt_override: str | None = None,
        first_node_prompt_override: str | None = None,
        scoped_inputs: list[str] | None = None,
        workflow_user_folder_override: str | None = None,
        api_key: str | None = None,
        tools: list[dict[str, Any]] | None = None,
        tool_choice: Any = None,
        calling_folder: str | None = None,
    ) -> Any:
        """Run a workflow of the user and return its result, or its chunk dicts when streaming."""
        manager = WorkflowManager(
            workflow_name, workflow_user_folder_override=workflow_user_folder_override, calling_folder=calling_folder
        )
        return manager.run_workflow(
            messages,
            request_id,
            discussion_id,
            is_streaming,
            non_responder,
            first_node_system_prompt_override,
            first_node_prompt_override,
            scoped_inputs,
            api_key,
            tools,
            tool_choice,
        )

    # Each runs the workflow that the user's file names under the key; clients never see its result.
    handle_conversation_memory_parser = staticmethod(_named_by_user("conversationMemoryToolWorkflow"))
    handle_recent_memory_parser = staticmethod(_named_by_user("recentMemoryToolWorkflow"))
    handle_full_chat_summary_parser = staticmethod(_named_by_user("chatSummaryToolWorkflow"))
    # No node runs this one.
    process_file_memories = staticmethod(_named_by_user("fileMemoryToolWorkflow"))

    def run_workflow(
        self,
        messages: list[Message],
        request_id: str,
        discussionId: str | None = None,
        stream: bool = False,
        nonResponder: bool | None = None,
        first_node_system_prompt_override: str | None = None,
        first_node_prompt_override: str | None = None,
        scoped_inputs: list[str] | None = None,
        api_key: str | None = None,
        tools: list[dict[str, Any]] | None = None,
        tool_choice: Any = None,
    ) -> Any:
        """Run to the end (streaming: return the iterator). The result is the last item, or None."""
        with contextlib.ExitStack() as until_the_end:
            items = self.start(
                request_at_work(request_id, until_the_end),
                messages,
                discussion_id=discussionId,
                stream=stream,
                non_responder=nonResponder,
                system_prompt_override=first_node_system_prompt_override,
                prompt_override=first_node_prompt_override,
                scoped_inputs=tuple(scoped_inputs or ()),
                api_key=api_key,
                tools=tools,
                tool_choice=tool_choice,
            )
            if stream:
                return then_close(items, until_the_end.pop_all())
            results = list(items)
        if len(results) != 1:
            logger.warning("Workflow %s gave %d results instead of one", self.workflow_config_name, len(results))
        return results[-1] if results else None

    def start(
        self, request: RequestContext, messages: list[Message], *, discussion_id: str | None = None, **run_fields: Any
    ) -> Iterator[Any]:
        """As ``start_prepared``, for messages that may be blank or have tags. These are removed in place.

        Without a ``discussion_id``, that of the first tag is used.
        """
        if discussion_id is None:
            discussion_id = extract_discussion_id(messages)
        remove_discussion_id_tag(messages)
        messages[:] = [message for message in messages if not is_blank(message)]
        return self.start_prepared(request, messages, discussion_id=discussion_id, **run_fields)

    def start_prepared(
        self,
        request: RequestContext,
        messages: list[Message],
        *,
        discussion_id: str | None,
        chain: tuple[str, ...] | None = None,
        **run_fields: Any,
    ) -> Iterator[Any]:
        """Return an iterator over the run: the responder's output first, then the later nodes as iteration goes on.

        ``run_fields`` are fields of ``RunRequest``. ``chain`` names the workflows around this one; by default
        those around the running node.
        """
        if request.listeners is None:
            request.listeners = self.listeners or Listeners(default_listeners())
        loaded = self._load()
        listeners = self.listeners or request.listeners
        listeners.emit("workflow_loaded", loaded)
        chain = (*(_chain_around(request) if chain is None else chain), f"{loaded.folder}/{loaded.name}")
        if len(chain) > MAX_NESTING:
            raise _nested_too_deep(chain)
        request.history = request.history or messages
        keys = discussion_keys(run_fields.get("api_key"))
        run = RunRequest(
            request=request,
            workflow_id=str(uuid.uuid4()),
            workflow_name=loaded.name,
            nodes=loaded.nodes,
            variables=loaded.variables,
            folder=loaded.folder,
            messages=messages,
            discussion_id=discussion_id or None,
            chain=chain,
            category_variables=self.category_variables,
            api_key_hash=keys.key_hash,
            encryption_key=keys.encryption_key,
            **run_fields,
        )
        return WorkflowProcessor(
            run,
            node_handlers=self.node_handlers,
            llm_handler_service=self.llm_handler_service,
            workflow_variable_service=self.variables,
            workflow_manager=self,
            listeners=listeners,
        ).execute()

    def _load(self) -> config_utils.LoadedWorkflow:
        name = self.workflow_config_name
        if self.path_finder_func is not None:
            return config_utils.workflow_at(name, self.path_finder_func(name))
        return config_utils.load_workflow(name, self.folder_override, self.calling_folder, self.calling_name)

    def start_child(self, context: ExecutionContext, name: str, **options: Unpack[ChildOptions]) -> Iterator[Any]:
        """Start a child workflow of the node in ``context``, in the same request and conversation.

        The child gets the messages of the run, without the timestamps that the node may see.
        """
        run = context.run
        assert run is not None
        manager = WorkflowManager(
            name,
            workflow_user_folder_override=options.pop("folder_override", None),
            calling_folder=run.folder,
            calling_name=run.workflow_name,
            category_variables=run.category_variables,
            parent=self,
        )
        # A child answers the client only if its node does, and so does every node around it.
        responds = context.is_responder and run.non_responder is None
        return manager.start(
            context.request,
            run.messages,
            discussion_id=context.discussion_id or "",
            chain=run.chain,
            stream=context.stream,
            non_responder=None if responds else True,
            partial=run.partial,
            api_key=context.api_key,
            tools=context.tools,
            tool_choice=context.tool_choice,
            **options,
        )


def _shared_handlers() -> dict[str, BaseHandler]:
    return build_registry(WorkflowVariableManager())


def is_blank(message: Message) -> bool:
    content = message.get("content")
    return not (
        (isinstance(content, str) and content.strip())
        or message.get("tool_calls")
        or message.get("tool_call_id")
        or message.get("images")
    )


def request_at_work(request_id: str, until_the_end: contextlib.ExitStack, stream: bool = False) -> RequestContext:
    """Return the current request; without one, a request that its id cancels until the stack is closed."""
    request = current_request()
    if request is not None:
        return request
    scope = until_the_end.enter_context(get_cancellation_service().watched(request_id))
    return RequestContext(request_id=request_id, stream=stream, cancel_scope=scope)


def then_close(items: Iterator[Any], stack: contextlib.ExitStack) -> Iterator[Any]:
    """Yield ``items``; close the stack at their end, or when the iterator is closed."""
    with stack:
        yield from items


def _nested_too_deep(chain: tuple[str, ...]) -> ConfigValueError:
    circle = " (they run each other in a circle)" if len(set(chain)) < len(chain) else ""
    return ConfigValueError(
        f"workflows are nested more than {MAX_NESTING} deep: "
        f"{' -> '.join(chain[:3])} -> ... -> {' -> '.join(chain[-2:])}{circle}"
    )


def _chain_around(request: RequestContext) -> tuple[str, ...]:
    """Return the workflows around the running node, for code in it that starts a workflow of its own."""
    site = current_node(request if current_request() is not None else None)
    return site.chain if site is not None else ()
