package csi

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"belay.dev/belay/internal/decision"
)

func TestSecretsAreRedactedInErrors(t *testing.T) {
	secrets := Secrets{
		"password": "hunter2-and-more", "short": "no", "prefix": "hunter2", "user": "admin\n",
		"key": "-----BEGIN KEY-----\nMIIBVwIBADANBg\n-----END KEY-----\n", "blank": "   \n\n",
	}
	tests := map[string]struct{ said, want string }{
		"nothing of them":            {"volume v1 not found", "volume v1 not found"},
		"one":                        {"login with hunter2-and-more failed", "login with [REDACTED] failed"},
		"one that another begins":    {"not hunter2, hunter2-and-more", "not [REDACTED], [REDACTED]"},
		"without its last newline":   {`user "admin" is unknown`, `user "[REDACTED]" is unknown`},
		"too short to be recognized": {"no node", "no node"},
		"a key, quoted":              {`bad key "-----BEGIN KEY-----\nMIIBVwIBADANBg\n-----END KEY-----\n"`, `bad key "[REDACTED]\n[REDACTED]\n[REDACTED]\n"`},
		"a key, indented, in lines":  {"bad key:\n\t-----BEGIN KEY-----\n\tMIIBVwIBADANBg", "bad key:\n\t[REDACTED]\n\t[REDACTED]"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := secrets.redactError(status.Error(codes.Unauthenticated, tt.said))
			if code, _ := Code(err); code != codes.Unauthenticated {
				t.Errorf("the code became %v", code)
			}
			if got := status.Convert(err).Message(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	if err := secrets.redactError(nil); err != nil {
		t.Errorf("no error became %v", err)
	}
}

// TestSecretsOfNodeCallsAreRedacted: a driver says back what it was sent.
func TestSecretsOfNodeCallsAreRedacted(t *testing.T) {
	tokens := `{"":{"token":"ey.default.sig","expirationTimestamp":"2026-01-01T00:00:00Z"},"vault":{"token":"ey.vault.sig","expirationTimestamp":"2026-01-01T00:00:00Z"}}`
	for name, volume := range map[string]NodeVolume{
		"tokens in the context": {Secrets: Secrets{"password": "hunter2"}, Context: map[string]string{TokensKey: tokens, "pool": "fast"}},
		"tokens in the secrets": {Secrets: Secrets{"password": "hunter2", TokensKey: tokens}, Context: map[string]string{"pool": "fast"}},
		"tokens that are none":  {Secrets: Secrets{"password": "hunter2", "a": "ey.default.sig", "b": "ey.vault.sig"}, Context: map[string]string{TokensKey: "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := volume.secretValues().redactError(status.Error(codes.Internal, "pool fast: hunter2, ey.default.sig and ey.vault.sig were refused"))
			if got, want := status.Convert(err).Message(), "pool fast: [REDACTED], [REDACTED] and [REDACTED] were refused"; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestSecretsPrintRedacted(t *testing.T) {
	secrets := Secrets{"password": "hunter2"}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if got := fmt.Sprintf(verb, secrets); got != "[REDACTED]" {
			t.Errorf("%s printed %s", verb, got)
		}
	}
}

// TestLongErrorsAreCut: a driver may quote the answer of its storage. The secret is taken out before the cut: half of one is a secret too.
func TestLongErrorsAreCut(t *testing.T) {
	secrets := Secrets{"password": "hunter2-and-more"}
	said := strings.Repeat("x", decision.MaxText-8) + "hunter2-and-more" + strings.Repeat("x", 1<<20)
	for name, err := range map[string]error{
		"a call with secrets": secrets.redactError(status.Error(codes.Internal, said)),
		"a call without":      wrap("NodeUnpublishVolume", "v", status.Error(codes.Internal, strings.Repeat("x", 1<<20))),
	} {
		if n := len(status.Convert(err).Message()); n > decision.MaxText+100 {
			t.Errorf("%s: the error has %d bytes", name, n)
		}
		if code, _ := Code(err); code != codes.Internal {
			t.Errorf("%s: the code became %v", name, code)
		}
		if strings.Contains(err.Error(), "hunter") {
			t.Errorf("%s: the error has a part of the secret", name)
		}
	}
}
