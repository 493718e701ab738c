# Stands for the file of this name in git's own t/: its scripts then speak to hangar's gateway instead of Apache.

HTTPD_ROOT_PATH=$PWD/httpd
HTTPD_DOCUMENT_ROOT_PATH=$HTTPD_ROOT_PATH/www
HTTPD_PROTO=http
mkdir -p "$HTTPD_DOCUMENT_ROOT_PATH"

start_httpd() {
  test_atexit stop_httpd
  : >"$HTTPD_ROOT_PATH/access.log"
  "$HANGAR_NODE" "$HANGAR_SUITE_SERVER" "$HTTPD_ROOT_PATH" </dev/null >"$HTTPD_ROOT_PATH/said" 2>&1 &
  HTTPD_PID=$!
  httpd_tries=0
  while ! test -s "$HTTPD_ROOT_PATH/port"; do
    httpd_tries=$((httpd_tries + 1))
    if test $httpd_tries -gt 300; then
      cat "$HTTPD_ROOT_PATH/said" >&2
      BAIL_OUT 'the gateway did not start'
    fi
    sleep 0.1
  done
  LIB_HTTPD_PORT=$(cat "$HTTPD_ROOT_PATH/port")
  HTTPD_DEST=127.0.0.1:$LIB_HTTPD_PORT
  HTTPD_URL=$HTTPD_PROTO://$HTTPD_DEST
  HTTPD_URL_USER=$HTTPD_PROTO://user%40host@$HTTPD_DEST
  HTTPD_URL_USER_PASS=$HTTPD_PROTO://user%40host:pass%40host@$HTTPD_DEST
}

stop_httpd() {
  kill "$HTTPD_PID" 2>/dev/null
  wait "$HTTPD_PID" 2>/dev/null
  return 0
}

# A program of the suite's own that only Apache could run.
install_script() {
  :
}
