@echo off
rem Runs rekey_encrypted_files.py in the first Python environment of the install folder: venv, .venv or .venv1. All
rem arguments go to it; paths in them are relative to where it is called.
setlocal
set "INSTALL=%~dp0.."

for %%N in (venv .venv .venv1) do (
    if exist "%INSTALL%\%%N\Scripts\activate.bat" (
        call "%INSTALL%\%%N\Scripts\activate.bat"
        goto run
    )
)
echo ERROR: there is no Python environment (venv, .venv or .venv1) in %INSTALL%. Start WilmerAI once; that makes it. 1>&2
exit /b 1

:run
python "%INSTALL%\Scripts\rekey_encrypted_files.py" %*
exit /b %errorlevel%
