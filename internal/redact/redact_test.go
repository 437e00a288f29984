package redact

import (
	"strings"
	"testing"
)

// TestHostileQuotedRequests: errors quote their request with %q, and Go prints maps without quotes. What spans and bundles show has no secret.
func TestHostileQuotedRequests(t *testing.T) {
	const secret = "AQBhunter2hunter2=="
	for _, text := range []string{
		`rpc error: code = Internal desc = POST /login: body "{\"user\":\"admin\",\"password\":\"` + secret + `\"}": 401`,
		`publish with secrets map[userID:admin userKey:` + secret + `]: denied`,
		`publish with map[secretKey:` + secret + ` secretId:x]: denied`,
		`adminKey=` + secret,
		`{"accessKey" : "` + secret + `"}`,
		`{"password":"a\\` + secret + `"}`,
	} {
		if got := Secrets(text); strings.Contains(got, "hunter2") {
			t.Errorf("%s", got)
		}
	}
}
