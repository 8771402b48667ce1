@echo off
rem Makes the Python environment on the first start, installs what requirements.lock names when that file has changed,
rem and starts WilmerAI. All arguments go to run_waitress.py. Exit statuses are compared with 0, because a program that
rem crashes or is interrupted has a negative one, and outside of parentheses, where they are those of the line before.
setlocal
set "STATUS=1"
rem Explorer calls cmd.exe /c with the script in two pairs of quotation marks and a blank at the end. For a command
rem before a pipe, which ends with a blank as well, cmd calls itself with /S /D /c.
set "CALLED=%cmdcmdline:"=%"
set "CLICKED="
if "%CALLED:~-1%"==" " if not "%CALLED:cmd.exe /c =%"=="%CALLED%" set "CLICKED=1"
cd /d "%~dp0" || goto elsewhere

venv\Scripts\python.exe -c "" >nul 2>nul
if not "%errorlevel%"=="0" goto create
fc /b requirements.lock venv\installed-requirements.lock >nul 2>nul
if "%errorlevel%"=="0" goto start
rem An environment without pip is what Ctrl-C leaves while one is made.
venv\Scripts\python.exe -m pip --version >nul 2>nul
if "%errorlevel%"=="0" goto install

:create
set "PYTHON="
rem One for which requirements.lock has packages, and that can make environments; else a newer one: the installation
rem then says what to do.
for %%P in ("py -3" "python" "python3" "py -3.15" "py -3.14" "py -3.13" "py -3.12" "py -3.11") do if not defined PYTHON (
    %%~P -c "import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 16))" >nul 2>nul && set "PYTHON=%%~P"
)
for %%P in ("py -3" "python" "python3") do if not defined PYTHON (
    %%~P -c "import sys; sys.exit(sys.version_info < (3, 11))" >nul 2>nul && set "PYTHON=%%~P"
)
if defined PYTHON goto make
echo ERROR: WilmerAI needs Python 3.11 or later, and none was found. See https://www.python.org/downloads/ 1>&2
goto end

:make
echo Creating the Python environment ^(first start only^) ...
%PYTHON% -m venv --clear venv
if "%errorlevel%"=="0" goto install
echo ERROR: The environment could not be made in "%CD%\venv"; the lines above say why. Put WilmerAI into a folder 1>&2
echo that you may write to, with 300 MB of free space. 1>&2
goto end

:install
echo Installing the packages listed in requirements.lock ^(only when it has changed^) ...
venv\Scripts\python.exe -m Middleware.cli.installing --require-hashes --only-binary :all: -r requirements.lock
set "STATUS=%errorlevel%"
if "%STATUS%"=="0" goto installed
rem It has said that it was interrupted.
if not "%STATUS%"=="130" echo ERROR: The installation failed; the lines above say why. 1>&2
goto end

:installed
copy /y requirements.lock venv\installed-requirements.lock >nul

:start
rem PowerShell finds nothing in the current folder without ".\".
set "WILMER_START_SCRIPT=.\run_windows.bat"
venv\Scripts\python.exe run_waitress.py %*
set "STATUS=%errorlevel%"

:end
rem The window that a double click has opened would close with the error in it. 130 is Ctrl-C. Programs that run services
rem may call the script as Explorer does, but have no window: only accounts at a screen are in the group S-1-5-4.
set "TOOLS=%SystemRoot%\System32"
if not defined CLICKED exit /b %STATUS%
if "%STATUS%"=="0" exit /b 0
if "%STATUS%"=="130" exit /b 130
"%TOOLS%\whoami.exe" /groups 2>nul | "%TOOLS%\findstr.exe" /c:"S-1-5-4 " >nul && pause
exit /b %STATUS%

:elsewhere
echo ERROR: The folder "%~dp0" cannot be used as the current one. If it is on a network share, give that a drive letter. 1>&2
goto end
