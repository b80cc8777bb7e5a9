<?php
// Sends the corpus with wp_mail of WordPress, without its database. The settings are those that WP Mail SMTP makes of
// the constants in docs/switch.md.
const WPINC = 'wp-includes';
define('ABSPATH', getenv('WORDPRESS') . '/');
$parts = ['load', 'plugin', 'functions', 'formatting', 'option', 'general-template', 'class-wp-error', 'pluggable'];
foreach ($parts as $file) {
    require_once ABSPATH . WPINC . "/$file.php";
}
add_filter('pre_option_blog_charset', fn () => 'UTF-8');
$key = getenv('KEY');
add_action('phpmailer_init', function ($mail) use (&$key) {
    $mail->isSMTP();
    $mail->Host = getenv('HOST');
    $mail->Port = getenv('PORT');
    $mail->SMTPSecure = 'tls';
    $mail->SMTPAuth = true;
    $mail->Username = 'apikey';
    $mail->Password = $key;
    $mail->SMTPOptions = ['ssl' => ['cafile' => getenv('CA')]];
});
add_action('wp_mail_failed', function ($error) {
    echo 'refused ', $error->get_error_message(), "\n";
});
foreach (json_decode(file_get_contents('corpus.json'), true) as $letter) {
    $headers = ["From: {$letter['name']} <{$letter['from']}>"];
    foreach (['Cc' => implode(',', $letter['cc'] ?? []), 'Bcc' => implode(',', $letter['bcc'] ?? []),
        'Reply-To' => $letter['reply_to'], 'Message-ID' => $letter['message_id'],
        'Content-Type' => $letter['html'] ? 'text/html' : ''] + ($letter['headers'] ?? []) as $name => $value) {
        if ($value) {
            $headers[] = "$name: $value";
        }
    }
    if ($letter['at']) {
        $headers[] = 'X-Mailgun-Deliver-By: ' . (new DateTime($letter['at']))->format(DATE_RFC2822);
    }
    $files = [];
    foreach ($letter['files'] ?? [] as $file) {
        file_put_contents($files[] = $file['name'], base64_decode($file['content']));
    }
    if (wp_mail($letter['to'], $letter['subject'], $letter['html'] ?: $letter['text'], $headers, $files)) {
        echo 'sent ', $GLOBALS['phpmailer']->getSMTPInstance()->getLastTransactionID(), "\n";
    }
}
$key = 'wrong';
wp_mail('a@demo.test', 'wrong', 't', ['From: shop@demo.test']);
