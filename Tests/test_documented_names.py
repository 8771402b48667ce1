"""The names that users' scripts and plug-ins import, and how they may be called.

Each line below is a function as the documentation has it. Parameters without a default are given by place, those with
one by name, too; what the program takes beyond them has defaults.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from typing import Any

import pytest

from Tests.tables import table

INTERFACE = {
    "api.api_helpers": """
        build_response_json(token, finish_reason=None, additional_fields=None, request_id=None, tool_calls=None)
        sse_format(data, output_format)
        get_model_name()
        parse_model_field(v)
        set_request_context_from_model(v)
        clear_request_context()
        require_identified_user()
        set_workflow_override(name)
        clear_workflow_override()
        get_active_workflow_override()
        extract_api_key()
        extract_idempotency_key()""",
    "api.api_server": "ApiServer(app_instance=None)",
    "api.concurrency_middleware": "ConcurrencyLimitMiddleware(app, semaphore, acquire_timeout=900)",
    "api.handlers.base.base_api_handler": "BaseApiHandler.register_routes(self, app)",
    "api.workflow_gateway": """
        handle_user_prompt(request_id, prompt_collection, stream, api_key=None, tools=None, tool_choice=None)""",
    "common.instance_global_variables": """
        get_api_type()
        set_api_type(v)
        clear_api_type()
        get_workflow_override()
        set_workflow_override(v)
        clear_workflow_override()
        get_request_user()
        set_request_user(v)
        clear_request_user()
        initialize_request_semaphore(n)
        get_request_semaphore()""",
    "exceptions.early_termination_exception": "EarlyTerminationException(message)",
    "llmapis.llm_api": """
        LlmApiService(endpoint, preset, max_tokens, stream=False)
        LlmApiService.get_response_from_llm(self, conversation=None, system_prompt=None, prompt=None,
            llm_takes_images=False, request_id=None, tools=None, tool_choice=None, structured_output_schema=None)
        LlmApiService.close(self)
        LlmApiService.is_busy(self)""",
    "services.cancellation_service": """
        cancellation_service.request_cancellation(request_id)
        cancellation_service.is_cancelled(request_id)
        cancellation_service.acknowledge_cancellation(request_id)
        cancellation_service.get_all_cancelled_requests()
        cancellation_service.register_abort_callback(request_id, fn)
        cancellation_service.unregister_abort_callbacks(request_id, fn=None)""",
    "services.idempotency_service": """
        idempotency_service.register(key, request_id)
        idempotency_service.release(request_id)
        idempotency_service.get_request_id_for_key(key)
        idempotency_service.clear()""",
    "services.memory_service": """
        MemoryService()
        MemoryService.get_recent_memories(self, messages, id, max_turns_to_search=0, max_summary_chunks_from_file=0,
            lookback_start=0)
        MemoryService.get_chat_summary_memories(self, messages, id, max_turns_to_search=0)
        MemoryService.get_current_summary(self, id)
        MemoryService.get_current_memories(self, id)
        MemoryService.get_current_state_document(self, id)
        MemoryService.find_how_many_new_memories_since_last_summary(summary_pairs, memory_pairs)
        MemoryService.get_latest_memory_chunks_with_hashes_since_last_summary(self, id)""",
    "services.response_builder_service": """
        ResponseBuilderService()
        ResponseBuilderService.build_openai_models_response(self)
        ResponseBuilderService.build_openai_completion_response(self, text)
        ResponseBuilderService.build_openai_chat_completion_response(self, text, tool_calls=None)
        ResponseBuilderService.build_openai_tool_call_response(self)
        ResponseBuilderService.build_openai_completion_chunk(self, token, finish_reason)
        ResponseBuilderService.build_openai_chat_completion_chunk(self, token, finish_reason, tool_calls=None)
        ResponseBuilderService.build_ollama_tags_response(self)
        ResponseBuilderService.build_ollama_version_response(self)
        ResponseBuilderService.build_ollama_generate_response(self, text, model, request_id=None)
        ResponseBuilderService.build_ollama_chat_response(self, text, model_name, request_id=None, tool_calls=None)
        ResponseBuilderService.build_ollama_tool_call_response(self, model)
        ResponseBuilderService.build_ollama_generate_chunk(self, token, finish_reason, request_id=None)
        ResponseBuilderService.build_ollama_chat_chunk(self, token, finish_reason, request_id=None, tool_calls=None)""",
    "services.timestamp_service": """
        TimestampService()
        TimestampService.resolve_and_track_history(self, messages, id)
        TimestampService.format_messages_with_timestamps(self, messages, id, use_relative_time=False)
        TimestampService.save_placeholder_timestamp(self, id)
        TimestampService.commit_assistant_response(self, id, content)
        TimestampService.save_specific_timestamp(self, id, content, stamp)
        TimestampService.get_time_context_summary(self, id)""",
    "utilities.config_utils": """
        get_user_config()
        get_user_config_for(user)
        get_config_value(key)
        get_current_username()
        get_config_path(folder, name)
        get_root_config_directory()
        get_root_public_directory()
        get_project_root_directory_path()
        load_config(path)
        get_endpoint_config(name)
        get_api_type_config(name)
        get_workflow_path(name)
        get_discussion_memory_file_path(id, api_key_hash=None)
        get_discussion_chat_summary_file_path(id, api_key_hash=None)
        get_discussion_timestamp_file_path(id, api_key_hash=None)
        get_discussion_condensation_tracker_file_path(id, api_key_hash=None)
        get_discussion_vision_responses_file_path(id, api_key_hash=None)
        get_discussion_context_compactor_old_file_path(id, api_key_hash=None)
        get_discussion_context_compactor_oldest_file_path(id, api_key_hash=None)
        get_discussion_state_document_file_path(id, api_key_hash=None)
        get_default_tool_prompt_path()""",
    "utilities.datetime_utils": """
        current_timestamp()
        add_seconds_to_timestamp(text, n)
        subtract_minutes_from_timestamp(text, n)
        parse_timestamp_string(text)
        format_datetime_to_ts(moment)
        format_relative_time_string(moment)
        format_relative_time_ago(text)""",
    "utilities.file_utils": """
        resolve_file_path(s)
        ensure_json_file_exists(path, initial=None)
        read_chunks_with_hashes(path, encryption_key=None)
        write_chunks_with_hashes(chunks, path, overwrite=False, encryption_key=None)
        update_chunks_with_hashes(chunks, path, mode='append', encryption_key=None)
        load_timestamp_file(path, encryption_key=None)
        save_timestamp_file(path, stamps, encryption_key=None)
        read_condensation_tracker(path, encryption_key=None)
        write_condensation_tracker(path, tracker, encryption_key=None)
        read_vision_responses(path, encryption_key=None)
        write_vision_responses(path, responses, encryption_key=None)
        read_plain_text_file(path, encryption_key=None)
        write_plain_text_file(path, text, encryption_key=None, backup_suffix=None)
        load_custom_file(path, delimiter, custom_delimiter, head_count=None, tail_count=None, chunk_delimiter='\\n')
        save_custom_file(path, content, mode='overwrite', find=None)""",
    "utilities.hashing_utils": """
        hash_content(s)
        hash_single_message(m)
        hash_message_with_images(m)
        chunk_messages_with_hashes(messages, chunk_size=500, use_first_message_hash=False)
        extract_text_blocks_from_hashed_chunks(pairs)
        find_last_matching_hash_message(messages, pairs, skip_system=False, turns_to_skip_looking_back=4)""",
    "utilities.prompt_extraction_utils": """
        extract_discussion_id(messages)
        remove_discussion_id_tag(messages)
        extract_last_n_turns(msgs, n, include_sysmes=True, remove_all_systems_override=False)
        extract_last_n_turns_as_string(msgs, n, include_sysmes=True, separator='\\n', add_role_tags=False)
        extract_last_turns_by_estimated_token_limit(msgs, limit, include_sysmes=True)
        extract_last_turns_by_estimated_token_limit_as_string(msgs, limit, separator='\\n', add_role_tags=False)
        extract_last_turns_with_min_messages_and_token_limit(msgs, n, limit, budget_overrides_min=False)
        extract_last_turns_with_min_messages_and_token_limit_as_string(msgs, n, limit, separator='\\n')
        separate_messages(msgs, separate_sysmes=False)""",
    "utilities.prompt_manipulation_utils": """
        combine_initial_system_prompts(msgs, prefix, suffix)
        get_messages_within_index(msgs, n)
        reduce_messages_to_fit_token_limit(system, msgs, max)
        reduce_messages_down_to_wilmer_acceptable_length(system, msgs, truncate, max_new)""",
    "utilities.search_utils": """
        search_in_chunks(chunks, query, max_hits=0)
        advanced_search_in_chunks(chunks, query, max_excerpts=40, proximity_limit=5)
        filter_keywords_by_speakers(messages, keywords)""",
    "utilities.sensitive_logging_utils": """
        set_encryption_context(flag)
        clear_encryption_context()
        is_encryption_active()
        sensitive_log(logger, level, msg, one, two)
        sensitive_log_lazy(logger, level, msg, one, two)
        log_prompt_content(logger, label, text)""",
    "utilities.streaming_utils": """
        StreamingThinkRemover(endpoint_config)
        StreamingThinkRemover.process_delta(self, s)
        StreamingThinkRemover.finalize(self)
        remove_thinking_from_text(text, endpoint_config)
        post_process_llm_output(text, endpoint_config, node_config)
        stream_static_content(text)""",
    "utilities.text_utils": """
        rough_estimate_token_length(text, safety_margin=1.1)
        reduce_text_to_token_limit(text, n)
        split_into_tokenized_chunks(text, size)
        chunk_messages_by_token_size(messages, size)
        messages_to_text_block(messages)
        messages_into_chunked_text_of_token_size(messages, size)
        get_message_chunks(messages, lookback, size)
        clear_out_user_assistant_from_chunks(chunks)
        tokenize(text)
        escape_brackets_in_string(text)
        return_brackets_in_string(text)
        replace_brackets_in_list(messages)
        return_brackets(messages)""",
    "utilities.vector_db_utils": """
        initialize_vector_db(id, api_key_hash=None)
        get_db_connection(id, api_key_hash=None)
        add_memory_to_vector_db(id, memory_text, metadata_json_str, api_key_hash=None, index_topics=False)
        search_memories_by_keyword(id, query, limit=15, api_key_hash=None, bm25_weights=None, use_recency=False)
        get_vector_check_hash_history(id, limit=10, api_key_hash=None)
        add_vector_check_hash(id, hash, api_key_hash=None)
        add_embeddings_to_db(id, rows, model, api_key_hash=None)
        get_all_embeddings(id, model, api_key_hash=None)
        get_memories_without_embeddings(id, model, limit=20, api_key_hash=None)
        get_memories_by_ids(id, ids, api_key_hash=None)""",
    "utilities.vector_math_utils": """
        vector_to_blob(vector)
        blob_to_vector(blob)
        cosine_similarity(a, b)
        rank_by_cosine(query, pairs, n)
        reciprocal_rank_fusion(lists, k=60)""",
    "workflows.handlers.base.base_workflow_node_handler": """
        BaseHandler.__init__(self, workflow_manager=None, workflow_variable_service=None)
        BaseHandler.handle(self, context)""",
    "workflows.managers.workflow_manager": """
        WorkflowManager(name, path_finder_func=None)
        WorkflowManager.run_custom_workflow(name, request_id, discussion_id, messages, non_responder=None,
            is_streaming=False, first_node_system_prompt_override=None, first_node_prompt_override=None,
            scoped_inputs=None, workflow_user_folder_override=None, api_key=None, tools=None, tool_choice=None)
        WorkflowManager.handle_conversation_memory_parser(request_id, discussion_id, messages, api_key=None)
        WorkflowManager.handle_recent_memory_parser(request_id, discussion_id, messages, api_key=None)
        WorkflowManager.handle_full_chat_summary_parser(request_id, discussion_id, messages, api_key=None)
        WorkflowManager.process_file_memories(request_id, discussion_id, messages, api_key=None)
        WorkflowManager.run_workflow(self, messages, request_id, discussionId=None, stream=False, nonResponder=None,
            first_node_system_prompt_override=None, first_node_prompt_override=None, scoped_inputs=None, api_key=None,
            tools=None, tool_choice=None)""",
    "workflows.managers.workflow_variable_manager": """
        WorkflowVariableManager.apply_variables(self, text, context)
        WorkflowVariableManager.apply_early_variables(self, text, agent_inputs, workflow_config)""",
    "workflows.models.execution_context": """
        NodeExecutionInfo(node_index, node_type, node_name, endpoint_name, endpoint_url, execution_time_seconds)
        NodeExecutionInfo.format_time(self)""",
    "workflows.streaming.response_handler": """
        StreamingResponseHandler(endpoint_config, workflow_node_config, generation_prompt=None, request_id=None)
        StreamingResponseHandler.process_stream(self, gen)""",
    "workflows.tools.dynamic_module_loader": """
        run_dynamic_module(module_path, one, two)
        DynamicModuleError(message, module_name=None, details=None)""",
    "workflows.tools.mcp_client_tool": "MCPClient.list_tools(self, server, timeout)",
    "workflows.tools.parallel_llm_processing_tool": """
        ParallelLlmProcessingTool(config)
        ParallelLlmProcessingTool.process_prompt_chunks(self, chunks, prompt, system_prompt, messages,
            custom_delimiter='')""",
    "workflows.tools.slow_but_quality_rag_tool": """
        SlowButQualityRAGTool.handle_discussion_id_flow(self, context, force_file_memory=False)
        SlowButQualityRAGTool.generate_and_store_vector_memories(self, pairs, settings, context)
        SlowButQualityRAGTool.process_new_memory_chunks(self, chunks, hash_chunks, rag_system_prompt, rag_prompt,
            workflow_config, context, chunks_per_memory=3)
        SlowButQualityRAGTool.perform_rag_on_memory_chunk(self, system, prompt, text_chunk, context, workflow_config,
            custom_delimiter='', chunks_per_memory=3)
        SlowButQualityRAGTool.perform_rag_on_conversation_chunk(self, system, prompt, text_chunk, context)
        SlowButQualityRAGTool.process_single_chunk(self, chunk, prompt, system_prompt, context)
        SlowButQualityRAGTool.condense_memories(self, discussion_id, settings, context)
        SlowButQualityRAGTool.perform_keyword_search(self, keywords, target, context)""",
}


def documented(lines: str) -> list[ast.Call]:
    return [
        statement.value
        for statement in ast.parse(inspect.cleandoc(_joined(lines))).body
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    ]


def _joined(lines: str) -> str:
    return "\n".join(line.strip() for line in lines.strip().splitlines())


CALLS = [
    pytest.param(f"Middleware.{module}", call, id=f"{module}-{ast.unparse(call.func)}")
    for module, lines in INTERFACE.items()
    for call in documented(lines)
]


@table(("module", "call"), CALLS)
def test_a_documented_call(module: str, call: ast.Call) -> None:
    target: Any = importlib.import_module(module)
    for name in ast.unparse(call.func).split("."):
        target = getattr(target, name)
    signature = inspect.signature(target)
    named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
    signature.bind(*call.args)
    signature.bind(*call.args, **named)
    assert {name: signature.parameters[name].default for name in named} == named


def test_the_first_fields_of_a_context() -> None:
    from Middleware.workflows.models.execution_context import ExecutionContext

    names = list(inspect.signature(ExecutionContext).parameters)
    assert names[:6] == ["request_id", "workflow_id", "discussion_id", "config", "messages", "stream"]
    assert {
        "workflow_config",
        "agent_inputs",
        "agent_outputs",
        "llm_handler",
        "workflow_variable_service",
        "workflow_manager",
        "node_handlers",
        "api_key",
        "encryption_key",
        "api_key_hash",
        "tools",
        "tool_choice",
        "is_responder",
    } <= set(names)
