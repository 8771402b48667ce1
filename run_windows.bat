@echo off
rem Makes the Python environment on the first start, installs what requirements.lock names when that file has changed,
rem and starts WilmerAI. All arguments go to run_waitress.py.
setlocal
cd /d "%~dp0" || exit /b 1

venv\Scripts\python.exe -c "" >nul 2>nul
if not errorlevel 1 goto installed

set "PYTHON="
for %%P in ("py -3" "python" "python3") do if not defined PYTHON (
    %%~P -c "import sys; sys.exit(sys.version_info < (3, 11))" >nul 2>nul && set "PYTHON=%%~P"
)
if not defined PYTHON (
    echo ERROR: WilmerAI needs Python 3.11 or later, and none was found. See https://www.python.org/downloads/ 1>&2
    exit /b 1
)
echo Creating the Python environment ^(first start only^) ...
%PYTHON% -m venv --clear venv
if errorlevel 1 (
    echo ERROR: The environment could not be made; the lines above say why. 1>&2
    exit /b 1
)

:installed
fc /b requirements.lock venv\installed-requirements.lock >nul 2>nul
if not errorlevel 1 goto start
echo Installing the packages listed in requirements.lock ^(only when it has changed^) ...
venv\Scripts\python.exe -m Middleware.cli.installing --require-hashes -r requirements.lock
if errorlevel 1 (
    echo ERROR: The installation failed; the lines above say why. 1>&2
    exit /b 1
)
copy /y requirements.lock venv\installed-requirements.lock >nul

:start
set "WILMER_START_SCRIPT=run_windows.bat"
venv\Scripts\python.exe run_waitress.py %*
exit /b %errorlevel%
