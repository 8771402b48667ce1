"""The keys of user files, of ``Users/_current-user.json``, and of the routing files that a user names."""

from __future__ import annotations

from dataclasses import replace

from Middleware.utilities.config.declarations import SWITCHED_ON, ConfigKey, KeyTable
from Middleware.utilities.json_data import FrozenDict

WORKFLOW_CHOICE: tuple[ConfigKey, ...] = (
    ConfigKey(
        "customWorkflowOverride",
        "bool",
        False,
        "Every request runs the workflow named in customWorkflow, without routing.",
    ),
    ConfigKey(
        "customWorkflow",
        "str",
        "",
        "The workflow that always runs while customWorkflowOverride is true.",
        names="workflow",
    ),
    ConfigKey(
        "routingConfig",
        "str",
        "",
        "The routing file with the categories of requests; without one, _DefaultWorkflow runs.",
        names="routing",
    ),
    ConfigKey(
        "categorizationWorkflow",
        "str",
        "_DefaultWorkflow",
        "The workflow that names the category of a request.",
        names="workflow",
    ),
    ConfigKey(
        "maxCategorizationAttempts",
        "int",
        1,
        "How often that workflow may run for one request until it names an existing category.",
        least=1,
    ),
    ConfigKey(
        "backgroundTaskWorkflow",
        "str",
        "",
        "The workflow for requests that Open WebUI sends on its own, such as titles, tags and follow-up questions.",
        names="workflow",
    ),
    ConfigKey(
        "backgroundNodesTimeoutInSeconds",
        "int",
        3600,
        "How long the nodes after the answer may run in the background; 0 means no limit.",
        least=0,
    ),
    ConfigKey(
        "backgroundNodesYield",
        "bool",
        False,
        "Calls of nodes after the answer give way to the next message: they begin 3 seconds after the answer, "
        "and are stopped and started again if a message needs their place. Endpoints say with parallelCalls or "
        "swapGroup that places are few.",
    ),
    ConfigKey("defaultParallelProcessWorkflow", "str", "", "Accepted without effect.", inert=True),
)

FOLDERS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "endpointConfigsSubDirectory",
        "str",
        "",
        "The folder below Endpoints with this user's endpoints; without it, they are in Endpoints itself.",
        names="endpoint-folder",
    ),
    ConfigKey(
        "presetConfigsSubDirectoryOverride",
        "str",
        None,
        "The folder of presets that is searched first; the user's name if not given.",
        names="preset-folder",
    ),
    ConfigKey(
        "workflowConfigsSubDirectoryOverride",
        "str",
        "",
        "The folder with this user's workflows, below Workflows/_overrides or Workflows; the user's name if not given.",
        names="workflow-folder",
    ),
    ConfigKey(
        "sharedWorkflowsSubDirectoryOverride",
        "str",
        "_shared",
        "The folder below Workflows whose workflows can be chosen as models.",
        names="workflow-folder",
    ),
    ConfigKey(
        "allowSharedWorkflows",
        "bool",
        False,
        "Lists the workflows of the shared folder as models; they can be chosen even if they are not listed.",
    ),
    ConfigKey(
        "structuredOutputConfigsSubDirectory",
        "str",
        None,
        "The folder of JSON schemas that is searched first; the user's name if not given.",
        names="structured-output-folder",
    ),
    ConfigKey(
        "discussionDirectory",
        "str",
        None,
        "Where the data of conversations are stored, such as memories; Public/DiscussionIds if not given.",
        names="directory",
        capability="stores conversations in",
    ),
    ConfigKey(
        "sqlLiteDirectory",
        "str",
        None,
        "Where the database of workflow locks is stored; Public/SqlLiteDBs if not given.",
        names="directory",
        capability="stores workflow locks in",
    ),
    ConfigKey(
        "allowedFileDirectories",
        "list",
        None,
        "The only directories in which nodes may read and write files; "
        "without this key, all are allowed; with an empty list, none.",
        entries="str",
        names="directory",
        capability="lets nodes read and write files in",
        guard="entries",
    ),
)

MEMORY: tuple[ConfigKey, ...] = (
    ConfigKey(
        "discussionIdMemoryFileWorkflowSettings",
        "str",
        "",
        "The memory settings file, in the user's workflow folder; memory nodes need it.",
        names="memory-settings",
    ),
    ConfigKey(
        "contextCompactorSettingsFile",
        "str",
        "",
        "The settings file of the context compactor, in the user's workflow folder.",
        names="compactor-settings",
    ),
    ConfigKey(
        "recentMemoryToolWorkflow",
        "str",
        "",
        "The workflow that RecentMemory nodes run, and QualityMemory nodes in chats without a discussion id.",
        names="workflow",
    ),
    ConfigKey("chatSummaryToolWorkflow", "str", "", "The workflow that FullChatSummary nodes run.", names="workflow"),
    ConfigKey(
        "conversationMemoryToolWorkflow", "str", "", "The workflow that ConversationMemory nodes run.", names="workflow"
    ),
    ConfigKey(
        "fileMemoryToolWorkflow",
        "str",
        "",
        "A workflow that writes memories for scripts; no node runs it.",
        names="workflow",
    ),
)

PROMPTS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "chatPromptTemplateName",
        "str",
        "_chatonly",
        "The prompt template for chat-only variables and for endpoints without their own.",
        names="prompt-template",
    ),
    ConfigKey(
        "chatCompleteAddUserAssistant",
        "bool",
        False,
        "Puts 'User: ' and 'Assistant: ' in front of the messages of chat clients.",
    ),
    ConfigKey(
        "chatCompletionAddMissingAssistantGenerator",
        "bool",
        False,
        "If the last message of a conversation is not the assistant's, adds an assistant turn, which is empty, "
        "or 'Assistant:' with chatCompleteAddUserAssistant.",
    ),
    ConfigKey(
        "separateConversationInVariables",
        "bool",
        False,
        "Puts conversationSeparationDelimiter between the messages in conversation variables.",
    ),
    ConfigKey("conversationSeparationDelimiter", "str", "\n", "The text between messages in conversation variables."),
    ConfigKey(
        "clampPromptToContextWindow",
        "bool",
        False,
        "Leaves out the oldest messages if a prompt would not fit the endpoint's maxContextTokenSize; endpoints "
        "and nodes can override this.",
    ),
    ConfigKey(
        "messageBlockSize",
        "int",
        1,
        "Where only a part of a conversation is sent, it begins at a message whose number is a multiple of this, "
        "so that the server can reuse the beginning of the prompt for several turns; nodes can override this. "
        "Parts of no more messages than this number stay whole.",
        least=1,
    ),
    ConfigKey(
        "userWideWorkflowVariables",
        "object",
        FrozenDict(),
        "Variables for all workflows of this user; their values may contain placeholders.",
        capability="changes what workflows run or reach, through the variables",
    ),
    ConfigKey(
        "partialVariableSubstitution",
        "bool",
        False,
        "Leaves an unknown placeholder as written and fills in the others of its text.",
    ),
)

LIVENESS: tuple[ConfigKey, ...] = (
    ConfigKey("toolName", "str", "", "The tool of the client that is called.", required=True),
    ConfigKey("arguments", "object", FrozenDict(), "The arguments of that call."),
)

CLIENTS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "interceptOpenWebUIToolRequests",
        "bool",
        False,
        'Answers Open WebUI\'s requests to choose tools with "none", without running a workflow.',
    ),
    ConfigKey(
        "sendReasoningToClient",
        "bool",
        False,
        "Sends the reasoning of a model to the client, separately from the answer.",
    ),
    ConfigKey(
        "contextLengthForClients",
        "int",
        32768,
        "The context length, in tokens, that lists of models state. Coding agents shorten a conversation when it "
        "gets near; set it to that of the model that answers, or higher if the workflow shortens conversations.",
        least=1,
    ),
    ConfigKey(
        "responsesStore",
        "str",
        "memory",
        "Where the responses of the Responses API are kept, so that clients can refer to them: 'memory' until "
        "the server stops, at most 1,000 and 64 MiB of all users together, or 'none'.",
        choices=("memory", "none"),
        caseless=True,
    ),
    ConfigKey(
        "livenessToolCall",
        "object",
        None,
        "The tool call that a client in a tool loop gets instead of an empty answer.",
        keys=LIVENESS,
        is_open=False,
    ),
    ConfigKey(
        "embeddingEndpointName",
        "list",
        None,
        "The endpoint, or the list of endpoints, that makes embeddings for clients that search documents; with "
        "several, the client's model chooses one, and the first is the default.",
        names="endpoint",
        entries="str",
        also=("str",),
    ),
    ConfigKey("stream", "bool", None, "Accepted without effect, because the client decides.", inert=True),
)

SERVICES: tuple[ConfigKey, ...] = (
    ConfigKey("connectTimeoutInSeconds", "int", 30, "How long to wait for a connection to an LLM server.", least=1),
    ConfigKey("useOfflineWikiApi", "bool", False, "Offline-Wikipedia nodes use their server."),
    ConfigKey(
        "offlineWikiApiHost",
        "str",
        "127.0.0.1",
        "The host of the offline-Wikipedia server.",
        capability="sends requests to the host",
    ),
    ConfigKey(
        "offlineWikiApiPort",
        "int",
        5728,
        "The port of the offline-Wikipedia server.",
        least=1,
        most=65535,
        capability="sends requests to port",
    ),
    ConfigKey("useOfflineResearcherApi", "bool", False, "Offline-researcher nodes use their server."),
    ConfigKey(
        "offlineResearcherApiHost",
        "str",
        "127.0.0.1",
        "The host of the offline-researcher server.",
        capability="sends requests to the host",
    ),
    ConfigKey(
        "offlineResearcherApiPort",
        "int",
        8890,
        "The port of the offline-researcher server.",
        least=1,
        most=65535,
        capability="sends requests to port",
    ),
    ConfigKey(
        "MCPO_URL",
        "str",
        "http://localhost:8889",
        "The address of an MCPO server, for the example scripts that call tools through one; the environment "
        "variable of that name if not given.",
        capability="sends requests to",
    ),
)

LAUNCH: tuple[ConfigKey, ...] = (
    ConfigKey("description", "str", "", "A remark about this user.", inert=True),
    ConfigKey("port", "int", 5000, "The port to listen on while this is the only user.", least=0, most=65535),
    ConfigKey("useFileLogging", "bool", False, "Writes log files while this is the only user."),
    ConfigKey(
        "encryptUsingApiKey",
        "bool",
        False,
        "Encrypts the stored data of conversations with the API key that the client sends.",
        capability="stores conversations without encryption",
        guard="true",
    ),
    ConfigKey(
        "redactLogOutput",
        "bool",
        False,
        "Keeps the texts of conversations out of the log.",
        capability="writes texts of conversations to the log",
        guard="true",
    ),
    ConfigKey("verboseLogging", "bool", None, "Accepted without effect.", inert=True),
)

# Every switch of a user file has always understood yes, no, on, off, 1 and 0, too.
USER_KEYS = tuple(
    replace(key, true_texts=SWITCHED_ON) if key.kind == "bool" else key
    for key in (*LAUNCH, *WORKFLOW_CHOICE, *FOLDERS, *PROMPTS, *CLIENTS, *MEMORY, *SERVICES)
)
USER = KeyTable(USER_KEYS)
LIVENESS_CALL = KeyTable(LIVENESS)

CURRENT_USER_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "currentUser",
        "str",
        "",
        "The user that is served when the command line names none.",
        names="user",
        required=True,
    ),
)
CURRENT_USER = KeyTable(CURRENT_USER_KEYS)

# Of one category of a routing file, in which every key is the name of a category.
ROUTING_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "description", "str", "", "What belongs to the category; the model that chooses sees this text.", required=True
    ),
    ConfigKey("workflow", "str", "", "The workflow that answers such requests.", names="workflow", required=True),
)
ROUTING = KeyTable(ROUTING_KEYS)
