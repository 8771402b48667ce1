@echo off
rem Makes the Python environment on the first start, installs what requirements.lock names when that file has changed,
rem and starts WilmerAI. All arguments go to run_waitress.py.
setlocal
cd /d "%~dp0" || exit /b 1

venv\Scripts\python.exe -c "" >nul 2>nul
if errorlevel 1 goto create
fc /b requirements.lock venv\installed-requirements.lock >nul 2>nul
if not errorlevel 1 goto start
rem An environment without pip is what Ctrl-C leaves while one is made.
venv\Scripts\python.exe -m pip --version >nul 2>nul
if not errorlevel 1 goto install

:create
set "PYTHON="
rem One for which requirements.lock has packages, else a newer one: the installation then says what to do.
for %%P in ("py -3" "python" "python3" "py -3.15" "py -3.14" "py -3.13" "py -3.12" "py -3.11") do if not defined PYTHON (
    %%~P -c "import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 16))" >nul 2>nul && set "PYTHON=%%~P"
)
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
    echo ERROR: The environment could not be made in "%CD%\venv"; the lines above say why. Put WilmerAI into a folder 1>&2
    echo that you may write to, with 300 MB of free space. 1>&2
    exit /b 1
)

:install
echo Installing the packages listed in requirements.lock ^(only when it has changed^) ...
venv\Scripts\python.exe -m Middleware.cli.installing --require-hashes --only-binary :all: -r requirements.lock
rem It has said that it was interrupted.
if %errorlevel% equ 130 exit /b 130
if errorlevel 1 (
    echo ERROR: The installation failed; the lines above say why. 1>&2
    exit /b 1
)
copy /y requirements.lock venv\installed-requirements.lock >nul

:start
set "WILMER_START_SCRIPT=run_windows.bat"
venv\Scripts\python.exe run_waitress.py %*
exit /b %errorlevel%
