import com.google.gson.Gson;
import com.google.gson.reflect.TypeToken;
import java.lang.reflect.Proxy;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.keycloak.email.DefaultEmailSenderProvider;
import org.keycloak.email.EmailAuthenticator.AuthenticatorType;
import org.keycloak.email.EmailException;
import org.keycloak.email.PasswordAuthEmailAuthenticator;
import org.keycloak.models.KeycloakSession;
import org.keycloak.models.KeycloakSessionFactory;
import org.keycloak.provider.Provider;
import org.keycloak.truststore.TruststoreProvider;
import org.keycloak.truststore.TruststoreProviderFactory;

/**
 * Sends the corpus with the code by which Keycloak sends mail, and tries a wrong key. The session of a running
 * Keycloak is imitated: it has no vault and no trusted certificates of its own.
 */
class Keycloak {
    record Letter(String subject, String name, String from, List<String> to, String reply_to, String text,
            String html) {}

    public static void main(String[] args) throws Exception {
        DefaultEmailSenderProvider sender = new DefaultEmailSenderProvider(
                imitate(KeycloakSession.class), Map.of(AuthenticatorType.BASIC, new PasswordAuthEmailAuthenticator()));
        String json = Files.readString(Path.of("corpus.json"));
        List<Letter> letters = new Gson().fromJson(json, new TypeToken<List<Letter>>() {}.getType());
        for (Letter l : letters) {
            sender.send(realm(l, System.getenv("KEY")), l.to.get(0), l.subject, or(l.text), or(l.html));
            System.out.println("sent");
        }
        try {
            sender.send(realm(letters.get(0), "wrong"), "ann@demo.test", "wrong", "t", null);
        } catch (EmailException e) {
            System.out.println("refused " + e.getCause().getCause());
        }
    }

    /** The settings of the realm, as the page for them stores them. */
    static Map<String, String> realm(Letter l, String key) {
        Map<String, String> settings = new HashMap<>();
        settings.put("host", System.getenv("HOST"));
        settings.put("port", System.getenv("PORT"));
        settings.put("starttls", "true");
        settings.put("auth", "true");
        settings.put("user", "apikey");
        settings.put("password", key);
        settings.put("from", l.from);
        settings.put("fromDisplayName", l.name);
        settings.put("replyTo", or(l.reply_to));
        return settings;
    }

    static String or(String text) {
        return text.isEmpty() ? null : text;
    }

    @SuppressWarnings("unchecked")
    static <T> T imitate(Class<T> kind) {
        return (T) Proxy.newProxyInstance(kind.getClassLoader(), new Class<?>[] {kind}, (proxy, method, args) -> {
            Class<?> result = method.getReturnType();
            if (result == Optional.class) {
                return Optional.empty();
            }
            if (kind == KeycloakSessionFactory.class) {
                return imitate(TruststoreProviderFactory.class);
            }
            boolean absent = result == Provider.class || result == TruststoreProvider.class;
            return result.isInterface() && !absent ? imitate(result) : null;
        });
    }
}
